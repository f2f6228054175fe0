"""The Triton kernels against plain PyTorch in double precision; needs a CUDA device."""

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from slimsched.slimmable.normalization import group_norm
from slimsched.slimmable.pooling import halve
from slimsched.slimmable.standardization import standardize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
BF16_ERROR = 1e-2


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(("channels", "side"), [(64, 32), (48, 32), (96, 16), (192, 8), (384, 4)])
def test_group_norm_with_residual_and_relu(channels: int, side: int) -> None:
    x = torch.randn(32, channels, side, side, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    residual = torch.randn_like(x, requires_grad=True)
    affine = torch.randn(4, 2, 512, device="cuda", requires_grad=True)
    gradient = torch.randn_like(x)
    y = group_norm(x, affine, row=1, group=8, residual=residual, relu=True)
    y.backward(gradient)
    xd, rd, ad = (t.detach().double().requires_grad_() for t in (x, residual, affine))
    wanted = F.group_norm(xd, channels // 8, ad[1, 0, :channels], ad[1, 1, :channels]) + rd
    (wanted * (y > 0)).backward(gradient.double())
    assert error(y, wanted.relu()) < BF16_ERROR
    for found, double in ((x, xd), (residual, rd), (affine, ad)):
        assert found.grad is not None
        assert double.grad is not None
        assert error(found.grad, double.grad) < BF16_ERROR


@pytest.mark.parametrize(("out", "into", "kernel"), [(512, 384, 3), (48, 3, 3), (128, 64, 1)])
def test_standardization_of_a_slice(out: int, into: int, kernel: int) -> None:
    weight = torch.randn(512, max(into, 3) + 16, kernel, kernel, device="cuda")
    weight = weight.to(memory_format=torch.channels_last).requires_grad_()
    gain = torch.randn(512, device="cuda", requires_grad=True)
    gradient = torch.randn(out, into, kernel, kernel, device="cuda")
    w = standardize(weight, gain, out_channels=out, in_channels=into, dtype=torch.float32)
    w.backward(gradient)
    wc, gc = (t.detach().cpu().requires_grad_() for t in (weight, gain))
    wanted = standardize(wc, gc, out_channels=out, in_channels=into, dtype=torch.float32)
    wanted.backward(gradient.cpu())
    assert torch.allclose(w.cpu(), wanted, atol=1e-5)
    assert weight.grad is not None
    assert torch.allclose(weight.grad.cpu(), wc.grad, atol=1e-4)


def test_pooling() -> None:
    x = torch.randn(8, 48, 16, 16, device="cuda").to(memory_format=torch.channels_last).requires_grad_()
    y = halve(x)
    y.square().sum().backward()
    assert torch.allclose(y, F.avg_pool2d(x, 2), atol=1e-6)
    assert x.grad is not None
    assert torch.allclose(x.grad, F.interpolate(y.detach(), scale_factor=2) / 2, atol=1e-6)
