"""Three ResNets as one model: no figures, no profile and no quality table come with it."""

import torch
from torchvision import models

from slimsched import Family, ModelSpec


def build(spec: ModelSpec) -> Family:
    torch.manual_seed(0)  # the same weights each time it is loaded
    members = {name: getattr(models, name)() for name in ("resnet18", "resnet50", "resnet101")}
    return Family(spec, members, prepare=lambda images: (images - 118.0) / 58.0)
