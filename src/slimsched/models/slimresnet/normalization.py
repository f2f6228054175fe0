"""Group norm over fixed groups of channels, with the sum and the ReLU that follow it in a residual block."""

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet.acceleration import fused_kernels

EPS = 1e-5


def group_norm(
    x: Tensor, affine: Tensor, *, row: int, group: int, residual: Tensor | None = None, relu: bool = False
) -> Tensor:
    """relu(gamma (x - mean) / std + beta + residual); `affine[row]` of (rows, 2, channels) is gamma, beta."""
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
