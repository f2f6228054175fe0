"""The Triton kernels against plain PyTorch in double precision.

They need a CUDA device, or Triton's interpreter: TRITON_INTERPRET=1 pytest tests/models/test_fused.py
"""

import os
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet import resnet as layers

CUDA = torch.cuda.is_available()
INTERPRETED = not CUDA and os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None
DEVICE = "cuda" if CUDA else "cpu"
DTYPE, TOLERANCE = (torch.bfloat16, 1e-2) if CUDA else (torch.float32, 1e-5)

pytestmark = pytest.mark.skipif(
    not (CUDA or INTERPRETED), reason="no CUDA device here (or Triton with TRITON_INTERPRET=1)"
)


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the fused kernels on the CPU too when they are interpreted."""
    if INTERPRETED:
        from slimsched.models.slimresnet import fused

        monkeypatch.setattr(layers, "fused_kernels", lambda tensor: fused)


def error(found: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    assert found is not None
    assert wanted is not None
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = torch.randn(*shape, device=DEVICE, dtype=dtype)
    return (tensor.to(memory_format=torch.channels_last) if len(shape) == 4 else tensor).requires_grad_()


@pytest.mark.parametrize(("channels", "side"), [(64, 32), (48, 32), (96, 16), (192, 8), (384, 4), (64, 6)])
def test_group_norm_with_residual_and_relu(channels: int, side: int) -> None:
    x, residual = (leaf(3, channels, side, side, dtype=DTYPE) for _ in range(2))
    affine = leaf(4, 2, 512)
    y = layers.group_norm(x, affine, row=1, group=8, residual=residual, relu=True)
    gradient = torch.randn_like(y)
    y.backward(gradient)
    xd, rd, ad = (t.detach().double().requires_grad_() for t in (x, residual, affine))
    wanted = F.group_norm(xd, channels // 8, ad[1, 0, :channels], ad[1, 1, :channels]) + rd
    (wanted * (y > 0)).backward(gradient.double())
    assert error(y, wanted.relu()) < TOLERANCE
    for found, double in ((x, xd), (residual, rd), (affine, ad)):
        assert error(found.grad, double.grad) < TOLERANCE


@pytest.mark.parametrize(("out", "into", "kernel"), [(24, 40, 3), (16, 3, 3), (32, 64, 1)])
def test_standardization_of_a_slice(out: int, into: int, kernel: int) -> None:
    weight, gain = leaf(32, into + 16, kernel, kernel), leaf(32)
    w = layers.standardize(weight, gain, out_channels=out, in_channels=into, dtype=torch.float32)
    gradient = torch.randn_like(w)
    w.backward(gradient)
    wd, gd = (t.detach().double().requires_grad_() for t in (weight, gain))
    centred = wd[:out, :into] - wd[:out, :into].mean(dim=(1, 2, 3), keepdim=True)
    norm = (centred.square().sum(dim=(1, 2, 3), keepdim=True) + layers.EPS).sqrt()
    wanted = gd[:out, None, None, None] * centred / norm
    wanted.backward(gradient.double())
    assert error(w, wanted) < 1e-5
    assert error(weight.grad, wd.grad) < 1e-4
    assert error(gain.grad, gd.grad) < 1e-4


def test_pooling() -> None:
    x = leaf(2, 48, 8, 8)
    y = layers.halve(x)
    y.square().sum().backward()
    assert error(y, F.avg_pool2d(x.detach(), 2)) < 1e-6
    assert error(x.grad, F.interpolate(y.detach(), scale_factor=2) / 2) < 1e-6
