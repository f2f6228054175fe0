"""Which tensors the fused kernels can take: those on a CUDA device, where Triton is installed."""

from functools import cache
from types import ModuleType

from torch import Tensor


@cache
def _fused_module() -> ModuleType | None:
    try:
        from slimsched.models.slimresnet import fused
    except ImportError:
        return None
    return fused


def fused_kernels(tensor: Tensor) -> ModuleType | None:
    """The module of fused kernels if it serves this tensor's device, else None (plain PyTorch then)."""
    return _fused_module() if tensor.is_cuda else None
