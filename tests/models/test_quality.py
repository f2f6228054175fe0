from pathlib import Path as FilePath

import numpy as np
import pytest

from cluster import MODEL, path, toy_model
from slimsched.core.config import DataError
from slimsched.models.quality import QualityTable, read_quality, write_quality
from slimsched.models.spec import PlanTree

TREE = MODEL.tree
EXITS = PlanTree([(0,), (1, 0), (1, 1, 0), (1, 1, 1)])


def test_a_plan_that_was_not_measured_takes_its_nearest_neighbours_value() -> None:
    points = {path(0.25, 0.25, 0.25, 0.25): 0.7, path(1.0, 1.0, 1.0, 1.0): 0.8}
    table = QualityTable.from_points(TREE, name="two", points=points)
    assert table.accuracy(path(0.25, 0.25, 0.25, 0.5)) == 0.7
    assert table.accuracy(path(1.0, 1.0, 0.75, 1.0)) == 0.8
    assert table.measured.sum() == 2


def test_the_papers_table_keeps_its_eight_points_and_marks_the_rest() -> None:
    table = MODEL.quality
    assert table.accuracy(path(0.25, 0.25, 0.25, 0.25)) == pytest.approx(0.7030)
    assert table.accuracy(path(0.25, 0.5, 0.75, 1.0)) == pytest.approx(0.7533)
    assert table.measured.sum() == 8


def test_in_the_papers_table_a_wider_last_segment_never_hurts_what_was_interpolated() -> None:
    table = MODEL.quality
    filled = [plan for plan, known in zip(TREE.plans, table.measured, strict=True) if not known]
    for plan in filled:
        wider = (*plan[:3], min(3, plan[3] + 1))
        if wider in filled:
            assert table.accuracy(wider) >= table.accuracy(plan) - 1e-12


def test_bits_give_accuracy_and_single_examples() -> None:
    rng = np.random.default_rng(0)
    right = rng.uniform(size=(256, 100)) < 0.7
    table = QualityTable.from_bits(TREE, name="bits", correct=np.packbits(right, axis=1), examples=100)
    plan = path(0.75, 0.5, 0.25, 1.0)
    row = TREE.index[plan]
    assert table.accuracy(plan) == pytest.approx(right[row].mean())
    assert [table.is_correct(plan, example) for example in range(100)] == right[row].tolist()
    assert table.is_correct(plan, 100) is None
    hits = table.hits(np.full(100, row), np.arange(100))
    assert hits is not None
    assert hits.tolist() == right[row].tolist()


def test_best_reachable_never_rises_as_choices_are_made() -> None:
    table = MODEL.quality
    for plan in TREE.plans:
        best = [table.best_reachable(plan[:length]) for length in range(5)]
        assert best == sorted(best, reverse=True)
        assert best[4] == table.accuracy(plan)


def test_a_table_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match="expected uint8 \\(256, 13\\)"):
        QualityTable.from_bits(TREE, name="bad", correct=np.zeros((255, 13), dtype=np.uint8), examples=100)


def test_a_value_for_every_plan_is_needed_and_none_outside_0_to_1() -> None:
    with pytest.raises(DataError, match="the model has 4 plans, so 4 values"):
        QualityTable(EXITS, name="short", accuracy=np.array([0.5, 0.5]))
    with pytest.raises(DataError, match="values in \\[0, 1\\]"):
        QualityTable(EXITS, name="percent", accuracy=np.array([50.0, 60.0, 70.0, 80.0]))


def test_a_table_without_points_is_refused() -> None:
    with pytest.raises(DataError, match="'empty' has no points; give at least one plan"):
        QualityTable.from_points(EXITS, name="empty", points={})


@pytest.mark.parametrize("fill", ["nearest", "additive"])
def test_plans_that_end_early_are_filled_in_too(fill: str) -> None:
    points = {(0,): 0.5, (1, 1, 1): 0.9}
    table = QualityTable.from_points(EXITS, name="exits", points=points, fill=fill)  # type: ignore[arg-type]
    assert [table.accuracy(plan) for plan in points] == [0.5, 0.9]
    assert all(0.5 <= table.accuracy(plan) <= 0.9 for plan in EXITS.plans)


def test_what_an_exit_gives_up_shows_in_what_can_still_be_reached() -> None:
    table = toy_model(plans=[(0,), (1, 0), (1, 1)], accuracies=[0.6, 0.7, 0.9]).quality
    assert [table.best_reachable(way) for way in ((), (0,), (1,), (1, 0))] == [0.9, 0.6, 0.9, 0.7]
    assert table.expected((1,)) == pytest.approx(0.8)
    assert table.expected(()) == pytest.approx((0.6 + 0.7 + 0.9) / 3)


def test_a_table_survives_the_disk_and_a_file_that_is_none_is_named(tmp_path: FilePath) -> None:
    right = np.random.default_rng(0).uniform(size=(4, 50)) < 0.6
    write_quality(tmp_path / "exits.npz", right)
    table = read_quality(tmp_path / "exits.npz", EXITS)
    assert table.by_plan.tolist() == right.mean(axis=1).tolist()
    assert [table.is_correct((1, 0), example) for example in range(50)] == right[1].tolist()
    np.savez(tmp_path / "means.npz", accuracy=np.array([0.1, 0.2, 0.3, 0.4]))
    assert read_quality(tmp_path / "means.npz", EXITS).accuracy((1, 1, 1)) == 0.4
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"bad\.npz is no quality table"):
        read_quality(tmp_path / "bad.npz", EXITS)


def test_routers_choose_by_one_half_of_the_examples_and_are_scored_on_the_other() -> None:
    right = np.random.default_rng(1).uniform(size=(256, 101)) < 0.7
    table = QualityTable.from_bits(TREE, name="bits", correct=np.packbits(right, axis=1), examples=101)
    chosen, scored = table.split()
    assert set(chosen.among) | set(scored.among) == set(range(101))
    assert not set(chosen.among) & set(scored.among)
    np.testing.assert_allclose(chosen.by_plan, right[:, ::2].mean(axis=1))
    np.testing.assert_allclose(scored.by_plan, right[:, 1::2].mean(axis=1))
    assert scored.is_correct(TREE.plans[3], 7) == right[3, 7], "examples keep their numbers"
    assert chosen.split() == (chosen, chosen), "a half is not split again"


def test_a_table_without_examples_is_both_halves() -> None:
    table = MODEL.measured
    assert table.split() == (table, table)
