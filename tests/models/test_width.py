import pytest

from slimsched.kernel.errors import WidthError
from slimsched.models.width import WIDTH_TUPLES, format_widths, parse_widths, tuple_index


def test_there_are_256_tuples_and_the_first_segment_varies_slowest() -> None:
    assert len(set(WIDTH_TUPLES)) == 256
    assert WIDTH_TUPLES[0] == (0.25,) * 4
    assert WIDTH_TUPLES[1] == (0.25, 0.25, 0.25, 0.5)
    assert WIDTH_TUPLES[-1] == (1.0,) * 4


def test_every_tuple_is_found_where_it_stands() -> None:
    assert [tuple_index(widths) for widths in WIDTH_TUPLES] == list(range(256))


def test_one_width_means_every_segment() -> None:
    assert parse_widths("0.5") == (0.5, 0.5, 0.5, 0.5)
    assert parse_widths("0.25,0.5,0.75,1") == (0.25, 0.5, 0.75, 1.0)
    assert parse_widths(format_widths((1.0, 0.25, 0.5, 0.75))) == (1.0, 0.25, 0.5, 0.75)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0.6", "width 0.6 is not available: this model was trained at 0.25, 0.5, 0.75, 1"),
        ("0.5,0.5", "2 widths given, but the network has 4 segments"),
        ("half", "widths 'half' are not numbers"),
    ],
)
def test_a_wrong_width_says_what_to_ask_for(text: str, says: str) -> None:
    with pytest.raises(WidthError, match=says):
        parse_widths(text)
