"""torchvision's ResNet-50 with a width attribute on every layer, cut into four segments."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torchvision.models import resnet50

from slimsched import ModelSpec, Switched


class SlimConv(nn.Conv2d):
    width_mult = 1.0

    def forward(self, x: Tensor) -> Tensor:
        out = int(self.out_channels * self.width_mult)
        return self._conv_forward(x, self.weight[:out, : x.shape[1]], None)


class SlimNorm(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        used = slice(x.shape[1])
        mean, var = self.running_mean[used], self.running_var[used]
        return F.batch_norm(x, mean, var, self.weight[used], self.bias[used], eps=self.eps)


class SlimLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight[:, : x.shape[1]], self.bias)


def build(spec: ModelSpec) -> Switched:
    torch.manual_seed(0)  # random weights: train them, then name them in model.toml
    net = resnet50()
    slim = {nn.Conv2d: SlimConv, nn.BatchNorm2d: SlimNorm, nn.Linear: SlimLinear}
    for layer in net.modules():
        layer.__class__ = slim.get(type(layer), type(layer))
    stem = ["conv1", "bn1", "relu", "maxpool", "layer1"]
    end = ["layer4", "avgpool", nn.Flatten(), "fc"]
    return Switched(spec, net, cut=[stem, ["layer2"], ["layer3"], end], prepare=lambda x: x / 127.5 - 1)
