import pytest

from slimsched.core.config import WidthError
from slimsched.models.shipped import default_spec
from slimsched.models.width import WIDTH_TUPLES, check_widths, format_widths


def test_there_are_256_tuples_and_the_first_segment_varies_slowest() -> None:
    assert len(set(WIDTH_TUPLES)) == 256
    assert WIDTH_TUPLES[0] == (0.25,) * 4
    assert WIDTH_TUPLES[1] == (0.25, 0.25, 0.25, 0.5)
    assert WIDTH_TUPLES[-1] == (1.0,) * 4


def test_every_tuple_is_found_where_it_stands() -> None:
    spec = default_spec()
    assert [spec.path(format_widths(widths)) for widths in WIDTH_TUPLES] == list(spec.plans)
    for widths in WIDTH_TUPLES:
        check_widths(widths)


def test_a_tuple_is_written_as_a_plan_of_the_shipped_model() -> None:
    spec = default_spec()
    assert [format_widths(widths) for widths in WIDTH_TUPLES] == [spec.text(plan) for plan in spec.plans]


@pytest.mark.parametrize(
    ("widths", "says"),
    [
        ((0.5, 0.6, 0.5, 0.5), "width 0.6 is not available: this model was trained at 0.25, 0.5, 0.75, 1"),
        ((0.5, 0.5), "2 widths given, but the network has 4 segments"),
    ],
)
def test_a_wrong_width_says_what_to_ask_for(widths: tuple[float, ...], says: str) -> None:
    with pytest.raises(WidthError, match=says):
        check_widths(widths)
