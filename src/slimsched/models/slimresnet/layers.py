"""Sliceable layers: weights are stored once at full width, and each call uses the leading channels it needs.

The input's channel count decides how many input channels a layer uses; the caller names the number of output
channels. No layer remembers the width it last ran at.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet.operations import group_norm, standardize

GROUP_CHANNELS = 8


class SlimConv2d(nn.Module):
    """A convolution without bias, weight-standardized with one learned gain per output channel."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel_size // 2
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        weight = torch.empty(shape, memory_format=torch.channels_last)
        nn.init.normal_(weight, std=math.sqrt(1 / (in_channels * kernel_size**2)))
        self.weight = nn.Parameter(weight)  # (out, in, k, k)
        self.gain = nn.Parameter(torch.ones(out_channels))  # (out,)

    def forward(self, x: Tensor, out_channels: int) -> Tensor:
        """(N, c, H, W) -> (N, out_channels, H / stride, W / stride)."""
        weight = self.sliced(out_channels, x.shape[1], x.dtype)
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding)

    def sliced(self, out_channels: int, in_channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the plain convolution weight of this slice."""
        return standardize(
            self.weight, self.gain, out_channels=out_channels, in_channels=in_channels, dtype=dtype
        )


class SlimLinear(nn.Module):
    """A linear layer that uses its leading inputs and outputs."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features).normal_(std=in_features**-0.5))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor, out_features: int | None = None) -> Tensor:
        """(..., c) -> (..., out_features); all outputs by default."""
        weight = self.weight[:out_features, : x.shape[-1]].to(x.dtype)
        return F.linear(x, weight, self.bias[:out_features].to(x.dtype))


class SlimGroupNorm(nn.Module):
    """Group norm over groups of 8 channels; each width has its own gamma and beta.

    Because groups have a fixed size, a channel's statistics do not depend on how many other channels run.
    """

    def __init__(self, channels: int, *, widths: int, gamma: float = 1.0) -> None:
        super().__init__()
        affine = torch.zeros(widths, 2, channels)
        affine[:, 0] = gamma
        self.affine = nn.Parameter(affine)  # (widths, gamma and beta, channels)

    def forward(
        self, x: Tensor, width_index: int, *, residual: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        """(N, c, H, W) -> (N, c, H, W), with optional residual sum and ReLU."""
        return group_norm(x, self.affine, row=width_index, group=GROUP_CHANNELS, residual=residual, relu=relu)
