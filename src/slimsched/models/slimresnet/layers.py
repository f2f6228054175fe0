"""Sliceable layers: weights are stored once at full width, and each call uses the leading channels it needs.

The input's channel count decides how many input channels a layer uses; the caller names the number of output
channels. No layer remembers the width it last ran at.

Its operations are fused kernels on CUDA with Triton, and plain PyTorch everywhere else.
"""

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

# -- Chooses between fused kernels and plain PyTorch: fused kernels need CUDA and Triton.


@cache
def _fused_module() -> ModuleType | None:
    try:
        from slimsched.models.slimresnet import fused
    except ImportError:
        return None
    return fused


def fused_kernels(tensor: Tensor) -> ModuleType | None:
    """Return the module of fused kernels if it supports this tensor's device; None means plain PyTorch."""
    return _fused_module() if tensor.is_cuda else None


# -- The tensor operations of SlimResNet: fused kernels on CUDA, plain PyTorch everywhere else.

EPS = 1e-5


def group_norm(
    x: Tensor, affine: Tensor, *, row: int, group: int, residual: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Compute relu(gamma (x - mean) / std + beta + residual) over groups of `group` channels.

    `affine` is (rows, 2, channels); `affine[row]` holds gamma and beta.
    """
    channels = x.shape[1]
    fused = fused_kernels(x)
    if fused is not None and fused.fits(x, group):
        y: Tensor = fused.FusedNorm.apply(x, residual, affine, row, group, EPS, relu)
        return y
    gamma, beta = affine[row, :, :channels].to(x.dtype)
    y = F.group_norm(x, channels // group, gamma, beta, EPS)
    if residual is not None:
        y = y + residual
    return F.relu(y) if relu else y


def halve(x: Tensor) -> Tensor:
    """Average every 2 x 2 pixels: (N, c, H, W) -> (N, c, H/2, W/2)."""
    fused = fused_kernels(x)
    if fused is None:
        return F.avg_pool2d(x, 2)
    y: Tensor = fused.FusedPool.apply(x)
    return y


def standardize(
    weight: Tensor, gain: Tensor, *, out_channels: int, in_channels: int, dtype: torch.dtype
) -> Tensor:
    """Return the slice (out_channels, in_channels, k, k) of a convolution's weight, standardized.

    Each output channel gets mean 0 and norm `gain`:

        w_hat = gain (w - mean(w)) / sqrt(sum((w - mean(w))^2) + eps)

    Training with group norm starts much faster this way. Serving pays nothing for it, because an instance
    standardizes its weights once when it is loaded.
    """
    fused = fused_kernels(weight)
    if fused is not None:
        sliced: Tensor = fused.FusedStandardize.apply(weight, gain, out_channels, in_channels, EPS, dtype)
        return sliced
    w = weight[:out_channels, :in_channels]
    centred = w - w.mean(dim=(1, 2, 3), keepdim=True)
    scale = (
        gain[:out_channels, None, None, None] * (centred.square().sum((1, 2, 3), keepdim=True) + EPS).rsqrt()
    )
    return (centred * scale).to(dtype)


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
