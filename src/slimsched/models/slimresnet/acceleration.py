"""Chooses between fused kernels and plain PyTorch: fused kernels need CUDA and Triton."""

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
    """Return the module of fused kernels if it supports this tensor's device; None means plain PyTorch."""
    return _fused_module() if tensor.is_cuda else None
