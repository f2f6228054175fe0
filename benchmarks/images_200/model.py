"""Two convolutional networks for images of 200 x 200, so small that moving the images matters."""

import torch
from torch import nn

from slimsched import Family, ModelSpec


def network(width: int) -> nn.Module:
    """Five convolutions, each halving the image, and a classifier."""
    layers: list[nn.Module] = []
    before = 3
    for channels in (width, 2 * width, 4 * width, 4 * width, 8 * width):
        layers += [nn.Conv2d(before, channels, 3, stride=2, padding=1), nn.ReLU()]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 100))


def build(spec: ModelSpec) -> Family:
    torch.manual_seed(0)  # the same weights each time it is loaded
    members = {"small": network(16), "large": network(48)}
    return Family(spec, members, prepare=lambda images: (images - 118.0) / 58.0)
