"""The tensor operations of SlimResNet: fused kernels on CUDA, plain PyTorch everywhere else."""

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet.acceleration import fused_kernels

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
