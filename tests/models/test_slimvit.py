"""SlimViT: shapes, slicing and what an instance computes."""

from itertools import pairwise

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from toy import total_macs

from slimsched.core.config import DataError, WidthError
from slimsched.models.slimvit.shape import SLIM_VIT, VitShape
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.width import SEGMENTS, WIDTHS

SHAPE = VitShape(dim=32, heads=4, hidden=64, stem=(32, 32), image_size=16, classes=5)
IMAGES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net() -> SlimVit:
    torch.manual_seed(0)
    return SlimVit(SHAPE).requires_grad_(False)


def test_what_a_segment_hands_over_has_the_same_shape_at_every_width(net: SlimVit) -> None:
    tokens = [net.segment(0)(IMAGES, width) for width in WIDTHS]
    assert {tuple(x.shape) for x in tokens} == {(3, SHAPE.tokens, SHAPE.dim)}
    assert all(net.segment(1)(x, 0.5).shape == x.shape for x in tokens)


@pytest.mark.parametrize("widths", [(0.25,) * 4, (1.0, 0.25, 0.75, 0.5), (1.0,) * 4])
def test_instances_compute_what_the_network_does(net: SlimVit, widths: tuple[float, ...]) -> None:
    x = IMAGES
    for index, width in enumerate(widths):
        x = net.instance(index, width=width)(x)
    assert torch.allclose(x, net(IMAGES, widths), atol=1e-5)


def test_every_width_gives_another_answer(net: SlimVit) -> None:
    answers = [net(IMAGES, (width,) * SEGMENTS) for width in WIDTHS]
    assert not any(torch.allclose(one, other) for one, other in pairwise(answers))


def test_a_narrow_pass_leaves_the_weights_it_does_not_use_without_gradient() -> None:
    net = SlimVit(SHAPE)
    net(IMAGES, (0.25,) * SEGMENTS).sum().backward()
    attention = net.get_parameter("segments.1.blocks.0.attention.qkv_weight").grad
    assert attention is not None
    assert attention[:, :8].abs().sum() > 0  # one head of eight
    assert attention[:, 8:].abs().sum() == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_the_shape_counts_the_arithmetic(width: float) -> None:
    """PyTorch's counter may leave fused attention out, so that part is allowed to be missing."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        SlimVit(SLIM_VIT)(torch.zeros(1, 3, 32, 32), (width,) * SEGMENTS)
    attention = 2 * SLIM_VIT.tokens**2 * SLIM_VIT.heads_at(width) * SLIM_VIT.head_dim * sum(SLIM_VIT.blocks)
    macs = total_macs(SLIM_VIT, (width,) * SEGMENTS)
    assert counter.get_total_flops() / 2 in (
        pytest.approx(macs, rel=1e-3),
        pytest.approx(macs - attention, rel=1e-3),
    )


def test_the_shape_counts_the_weights() -> None:
    counted = sum(SLIM_VIT.parameters(segment, 1.0) for segment in range(SEGMENTS))
    stored = sum(parameter.numel() for parameter in SlimVit(SLIM_VIT).parameters())
    assert counted == pytest.approx(stored, rel=0.01)


def test_wrong_shapes_and_widths_are_refused(net: SlimVit) -> None:
    with pytest.raises(DataError, match=r"segment 0 was given shape \(1, 3, 8, 8\)"):
        net.segment(0)(torch.zeros(1, 3, 8, 8), 1.0)
    with pytest.raises(WidthError, match=r"width 0\.3"):
        net.instance(0, width=0.3)
    for wrong in ({"heads": 6}, {"stem": (24, 32)}, {"token_pixels": 8}):
        with pytest.raises(DataError):
            SlimVit(VitShape(**wrong))  # type: ignore[arg-type]
