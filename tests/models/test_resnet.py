import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from toy import SHAPE, total_macs

from slimsched.core.config import DataError, WidthError
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shape import SLIM_RESNET, NetworkShape
from slimsched.models.width import WIDTH_TUPLES, WIDTHS


@pytest.fixture(scope="module")
def net() -> SlimResNet:
    torch.manual_seed(0)
    net = SlimResNet(SHAPE)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return net.requires_grad_(False)


@given(widths=st.sampled_from(WIDTH_TUPLES))
@settings(max_examples=20, deadline=None)
def test_any_tuple_runs_and_segments_compose_to_the_whole(net: SlimResNet, widths: tuple[float, ...]) -> None:
    images = torch.randn(2, 3, 16, 16)
    x = images
    for index, width in enumerate(widths):
        x = net.segment(index)(x, width)
    assert x.shape == (2, 5)
    assert torch.equal(x, net(images, widths))


@given(widths=st.sampled_from(WIDTH_TUPLES))
@settings(max_examples=20, deadline=None)
def test_folded_instances_give_what_the_network_gives(net: SlimResNet, widths: tuple[float, ...]) -> None:
    images = torch.randn(2, 3, 16, 16)
    x = images
    for index, width in enumerate(widths):
        x = net.instance(index, width=width, previous=widths[index - 1] if index else None)(x)
    assert torch.allclose(x, net(images, widths), atol=1e-4)


def test_an_instance_takes_only_the_memory_of_its_slice(net: SlimResNet) -> None:
    narrow, wide = net.instance(0, width=0.25), net.instance(0, width=1.0)
    assert weight_bytes(narrow) < weight_bytes(wide) / 8
    assert weight_bytes(narrow.half()) * 2 == weight_bytes(net.instance(0, width=0.25))


def weight_bytes(instance: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in instance.buffers())


@pytest.mark.parametrize("widths", [(0.25,) * 4, (0.5,) * 4, (1.0,) * 4, (0.25, 0.5, 0.75, 1.0)])
def test_the_arithmetic_counted_is_the_arithmetic_done(widths: tuple[float, ...]) -> None:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        SlimResNet()(torch.zeros(1, 3, 32, 32), widths)
    assert counter.get_total_flops() == 2 * total_macs(SLIM_RESNET, widths)


def test_the_narrowest_tuple_costs_a_sixteenth() -> None:
    costs = [total_macs(SLIM_RESNET, (width,) * 4) for width in WIDTHS]
    assert costs == sorted(costs)
    assert costs[-1] / costs[0] == pytest.approx(16, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "segment"), [((2, 3, 16), 0), ((2, 4, 16, 16), 0), ((2, 3, 32, 32), 0), ((2, 12, 16, 16), 1)]
)
def test_a_wrong_shape_is_named_with_what_would_fit(
    net: SlimResNet, shape: tuple[int, ...], segment: int
) -> None:
    with pytest.raises(DataError, match=f"segment {segment} was given shape .*; it takes"):
        net.segment(segment)(torch.zeros(shape), 0.5)


def test_an_unknown_width_is_named_with_the_known_ones(net: SlimResNet) -> None:
    with pytest.raises(WidthError, match=r"width 0\.6 is not available.*0\.25, 0\.5, 0\.75, 1"):
        net(torch.zeros(1, 3, 16, 16), (0.5, 0.6, 0.5, 0.5))


def test_an_instance_after_the_first_needs_the_previous_width(net: SlimResNet) -> None:
    with pytest.raises(WidthError, match="every other needs one"):
        net.instance(1, width=0.5)
    with pytest.raises(WidthError, match="segments 0 to 3"):
        net.instance(4, width=0.5)


def test_channels_that_do_not_split_are_refused() -> None:
    with pytest.raises(DataError, match="multiples of 32"):
        SlimResNet(NetworkShape(channels=(48, 64, 64, 64)))
