"""How sure plans are: levels, their file, and what further plans are worth."""

from pathlib import Path

import numpy as np
import pytest

from slimsched.core.config import DataError
from slimsched.models.quality import (
    LEVELS,
    Confidences,
    QualityTable,
    choosing_half,
    read_quality,
    write_quality,
)
from slimsched.models.spec import PlanTree

TREE = PlanTree([(0, 0), (0, 1), (1, 1)])
EXAMPLES = 2001
RNG = np.random.default_rng(0)
HARD = RNG.uniform(size=EXAMPLES)
"""How hard each example is; the narrow plan is right on the easy ones and says so."""
RIGHT = np.stack([HARD < 0.6, HARD < 0.7, HARD < 0.9])
SURE = (1.0 - HARD)[None, :] + RNG.normal(scale=0.02, size=(2, EXAMPLES))


def confidences() -> Confidences:
    agrees = RIGHT[[0, 2]] == RIGHT[2]
    return Confidences.measured([0, 2], SURE, agrees, choosing_half(EXAMPLES))


def table() -> QualityTable:
    bits = np.packbits(RIGHT, axis=1)
    return QualityTable.from_bits(
        TREE, name="made up", correct=bits, examples=EXAMPLES, confidences=confidences()
    )


def test_levels_hold_equal_shares_of_the_examples_that_routers_choose_by() -> None:
    found = confidences()
    counts = np.bincount(found.levels[0, choosing_half(EXAMPLES)], minlength=LEVELS)
    assert counts.max() - counts.min() <= 2


def test_the_typical_confidence_of_an_example_lies_in_its_level() -> None:
    found = confidences()
    for example in range(100):
        assert found.level(0, found.typical(0, example)) == found.levels[0, example]
        assert found.level(0, float(SURE[0, example])) == found.levels[0, example]


def test_plans_without_levels_say_nothing() -> None:
    assert (confidences().typical(1, 5), confidences().top(1, 5)) == (0.0, -1)
    assert {confidences().top(2, example) for example in range(50)} == {0}


def test_a_quality_file_keeps_them(tmp_path: Path) -> None:
    write_quality(tmp_path / "quality.npz", RIGHT, confidences=confidences())
    read = read_quality(tmp_path / "quality.npz", TREE).confidences
    assert read is not None
    assert read.plans == [0, 2]
    np.testing.assert_array_equal(read.levels, confidences().levels)
    np.testing.assert_array_equal(read.agrees, confidences().agrees)
    np.testing.assert_allclose(read.edges, confidences().edges)


def test_a_file_whose_levels_do_not_fit_is_refused(tmp_path: Path) -> None:
    arrays = {**confidences().arrays(), "correct": np.packbits(RIGHT, axis=1), "images": np.array(EXAMPLES)}
    for name, wrong in [("sure_plans", np.array([0, 7])), ("sure_levels", np.zeros((2, 9), np.uint8))]:
        np.savez(tmp_path / "quality.npz", allow_pickle=False, **{**arrays, name: wrong})
        with pytest.raises(DataError, match="is no quality table"):
            read_quality(tmp_path / "quality.npz", TREE)


def test_a_wider_plan_is_worth_most_where_the_narrow_one_is_least_sure() -> None:
    worth = table().split()[0].escalation
    assert worth is not None
    gain = worth.right[0, :, 2] - worth.right[0, :, 0]
    assert gain[:4].mean() > 0.3
    assert abs(gain[-1]) < 0.05
    assert worth.right[0, 0, 0] < 0.2 < 0.8 < worth.right[0, -1, 0]
    assert worth.kept.tolist() == [[2, 1, 0], [0, 0, 2]]


def test_each_half_has_its_own_table() -> None:
    chosen, scored = table().split()
    assert chosen.escalation is not None
    assert scored.escalation is not None
    assert not np.allclose(chosen.escalation.right, scored.escalation.right)
    np.testing.assert_allclose(chosen.escalation.right, scored.escalation.right, atol=0.15)
