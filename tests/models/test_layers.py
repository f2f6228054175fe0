import pytest
import torch
from toy import SHAPE

from slimsched.models.slimresnet.resnet import SlimConv2d, SlimGroupNorm, SlimLinear


def test_a_convolution_slice_is_standardized_by_its_own_weights() -> None:
    conv = SlimConv2d(16, 32, 3)
    weight = conv.sliced(8, 4)
    assert weight.shape == (8, 4, 3, 3)
    assert weight.sum(dim=(1, 2, 3)).abs().max() < 1e-5
    assert torch.allclose(weight.square().sum(dim=(1, 2, 3)), torch.ones(8), atol=1e-3)


def test_a_narrow_convolution_uses_the_leading_weights_only() -> None:
    conv = SlimConv2d(16, 32, 3)
    x = torch.randn(2, 8, 6, 6)
    before = conv(x, 16)
    with torch.no_grad():
        conv.weight[16:] = 7.0
        conv.weight[:, 8:] = -7.0
        conv.gain[16:] = 3.0
    assert torch.equal(conv(x, 16), before)


def test_gradients_reach_the_slice_and_nothing_else() -> None:
    conv = SlimConv2d(16, 32, 3)
    conv(torch.randn(2, 8, 6, 6), 16).square().sum().backward()
    assert conv.weight.grad is not None
    assert conv.weight.grad[:16, :8].abs().sum() > 0
    assert conv.weight.grad[16:].abs().sum() == 0
    assert conv.weight.grad[:, 8:].abs().sum() == 0


def test_a_channels_norm_does_not_depend_on_how_many_others_run() -> None:
    norm = SlimGroupNorm(32, widths=4)
    x = torch.randn(2, 32, 4, 4)
    assert torch.allclose(norm(x, 3)[:, :16], norm(x[:, :16], 3), atol=1e-6)


def test_each_width_has_its_own_gamma_and_beta() -> None:
    norm = SlimGroupNorm(16, widths=4)
    with torch.no_grad():
        norm.affine[1, 1] = 5.0
    x = torch.randn(2, 16, 4, 4)
    assert torch.allclose(norm(x, 1), norm(x, 0) + 5, atol=1e-6)


def test_norm_adds_the_residual_before_the_relu() -> None:
    norm = SlimGroupNorm(16, widths=1)
    x, residual = torch.randn(2, 16, 4, 4), torch.randn(2, 16, 4, 4)
    assert torch.allclose(norm(x, 0, residual=residual, relu=True), (norm(x, 0) + residual).relu())


def test_a_linear_layer_uses_leading_inputs_and_outputs() -> None:
    linear = SlimLinear(12, 6)
    x = torch.randn(3, 5, 8)
    assert linear(x).shape == (3, 5, 6)
    assert torch.allclose(linear(x, 4), linear(x)[..., :4], atol=1e-6)


@pytest.mark.parametrize("classes", [SHAPE.classes])
def test_layers_hold_no_state_about_the_width_in_use(classes: int) -> None:
    linear = SlimLinear(8, classes)
    x = torch.randn(2, 8)
    first = linear(x)
    linear(x[:, :2])
    assert torch.equal(linear(x), first)
