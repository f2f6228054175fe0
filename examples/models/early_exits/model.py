"""A small convolutional network that may answer after its first or second part."""

import torch
from torch import nn

from slimsched import Exits, ModelSpec

CHANNELS = (3, 16, 32, 64)


def body(into: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(into, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU())


def head(channels: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def build(spec: ModelSpec) -> Exits:
    torch.manual_seed(0)  # random weights: train them, then name them in model.toml
    bodies = [body(CHANNELS[part], CHANNELS[part + 1]) for part in range(3)]
    heads = [head(channels) for channels in CHANNELS[1:]]
    return Exits(spec, bodies=bodies, heads=heads, prepare=lambda images: images / 127.5 - 1)
