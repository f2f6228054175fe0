from toy import total_macs

from slimsched.models.shipped import default_spec
from slimsched.models.slimresnet.shape import SLIM_RESNET
from slimsched.models.width import WIDTHS


def test_arithmetic_falls_sixteenfold_from_full_to_quarter_width() -> None:
    full, quarter = (total_macs(SLIM_RESNET, (width,) * 4) for width in (1.0, 0.25))
    assert 15.5 < full / quarter < 16.5


def test_a_narrower_segment_always_costs_less() -> None:
    for segment in range(4):
        for previous in WIDTHS if segment else (None,):
            costs = [SLIM_RESNET.macs(segment, previous, width) for width in WIDTHS]
            assert costs == sorted(costs)
            assert len(set(costs)) == 4


def test_activations_are_those_of_the_real_tensors() -> None:
    assert SLIM_RESNET.output_elements(0, 1.0) == 64 * 32 * 32
    assert SLIM_RESNET.output_elements(1, 0.5) == 64 * 16 * 16
    assert SLIM_RESNET.output_elements(2, 0.25) == 64 * 8 * 8
    assert SLIM_RESNET.output_elements(3, 1.0) == 100
    assert default_spec().row_bytes == 3072
