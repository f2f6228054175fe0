import numpy as np
import pytest

from slimsched.kernel.errors import DataError
from slimsched.models.accuracy import AccuracyTable
from slimsched.models.width import WIDTH_TUPLES, parse_widths
from slimsched.serving.execution.scenario_file import load_accuracy


def test_a_tuple_that_was_not_measured_takes_its_nearest_neighbours_value() -> None:
    points = {(0.25,) * 4: 0.7, (1.0,) * 4: 0.8}
    table = AccuracyTable.from_points(name="two", points=points)
    assert table.accuracy((0.25, 0.25, 0.25, 0.5)) == 0.7
    assert table.accuracy((1.0, 1.0, 0.75, 1.0)) == 0.8
    assert table.measured.sum() == 2


def test_the_papers_table_keeps_its_eight_points_and_marks_the_rest() -> None:
    table = load_accuracy("paper")
    assert table.accuracy((0.25,) * 4) == pytest.approx(0.7030)
    assert table.accuracy((0.25, 0.5, 0.75, 1.0)) == pytest.approx(0.7533)
    assert table.measured.sum() == 8


def test_in_the_papers_table_a_wider_last_segment_never_hurts_what_was_interpolated() -> None:
    table = load_accuracy("paper")
    filled = [w for w, known in zip(WIDTH_TUPLES, table.measured, strict=True) if not known]
    for widths in filled:
        wider = (*widths[:3], min(1.0, widths[3] + 0.25))
        if wider in filled:
            assert table.accuracy(wider) >= table.accuracy(widths) - 1e-12


def test_bits_give_accuracy_and_single_images() -> None:
    rng = np.random.default_rng(0)
    right = rng.uniform(size=(256, 100)) < 0.7
    table = AccuracyTable.from_bits(name="bits", correct=np.packbits(right, axis=1), images=100)
    widths = parse_widths("0.75,0.5,0.25,1.0")
    row = WIDTH_TUPLES.index(widths)
    assert table.accuracy(widths) == pytest.approx(right[row].mean())
    assert [table.is_correct(widths, image) for image in range(100)] == right[row].tolist()
    assert table.is_correct(widths, 100) is None
    hits = table.hits(np.full(100, row), np.arange(100))
    assert hits is not None
    assert hits.tolist() == right[row].tolist()


def test_best_reachable_never_rises_as_widths_are_fixed() -> None:
    table = load_accuracy("paper")
    for widths in WIDTH_TUPLES:
        best = [table.best_reachable(widths[:length]) for length in range(5)]
        assert best == sorted(best, reverse=True)
        assert best[4] == table.accuracy(widths)


def test_a_table_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match="expected uint8 \\(256, 13\\)"):
        AccuracyTable.from_bits(name="bad", correct=np.zeros((255, 13), dtype=np.uint8), images=100)
