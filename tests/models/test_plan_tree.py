from hypothesis import given
from hypothesis import strategies as st
from model_specs import model_specs

from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelSpec, PlanTree

UNEVEN = PlanTree([(0, 2), (1, 0), (1, 1), (1, 2)])


@given(model_specs())
def test_every_path_of_every_plan_has_a_row_and_nothing_else_has(spec: ModelSpec) -> None:
    tree = PlanTree(spec.plans)
    paths = {plan[:length] for plan in spec.plans for length in range(len(plan) + 1)}
    assert set(tree.row) == paths
    assert [tree.paths[row] for row in tree.row.values()] == list(tree.row)
    assert [tree.paths[row] for row in tree.leaves] == list(spec.plans)
    assert [len(path) for path in tree.paths] == sorted(len(path) for path in tree.paths)
    assert len(tree) == len(paths)


@given(model_specs())
def test_children_are_the_paths_one_choice_further_in_order_of_their_choices(spec: ModelSpec) -> None:
    tree = PlanTree(spec.plans)
    for path, row in tree.row.items():
        longer = sorted(other for other in tree.paths if other[:-1] == path and other)
        assert [tree.paths[child] for child in tree.children[row]] == longer
        assert tree.choices[row].tolist() == [other[-1] for other in longer]
        assert tree.after[path] == tuple(tree.choices[row].tolist())
        assert tree.is_plan(path) == (not longer)


@given(model_specs(), st.booleans())
def test_going_on_from_anywhere_ends_in_a_plan(spec: ModelSpec, widest: bool) -> None:
    tree = PlanTree(spec.plans)
    for path in tree.paths:
        ends = [tree.complete(path, widest=widest), *([tree.stay(path)] if path else [])]
        for plan in ends:
            assert plan in tree.index
            assert plan[: len(path)] == path
    assert tree.complete((), widest=True) == spec.widest
    assert tree.complete((), widest=False) == spec.narrowest
    assert tree.middle in tree.index


@given(model_specs())
def test_levels_list_every_path_that_goes_on_with_its_children(spec: ModelSpec) -> None:
    tree = PlanTree(spec.plans)
    listed = {}
    for rows, children in tree.levels:
        for row, padded in zip(rows.tolist(), children.tolist(), strict=True):
            listed[row] = [child for child in padded if child >= 0]
    assert listed == {row: tree.children[row].tolist() for row in range(len(tree)) if len(tree.children[row])}


@given(model_specs(), st.randoms(use_true_random=False))
def test_best_and_mean_of_a_path_are_those_of_the_plans_that_begin_with_it(
    spec: ModelSpec, rng: object
) -> None:
    tree = PlanTree(spec.plans)
    points = {plan: rng.random() for plan in spec.plans}  # type: ignore[attr-defined]
    table = QualityTable.from_points(tree, name="drawn", points=points)
    for path in tree.paths:
        below = [value for plan, value in points.items() if plan[: len(path)] == path]
        assert table.best_reachable(path) == max(below)
        assert abs(table.expected(path) - sum(below) / len(below)) < 1e-12
    assert [table.accuracy(plan) for plan in spec.plans] == list(points.values())


def test_staying_takes_the_nearest_choice_there_is() -> None:
    assert UNEVEN.stay((0,)) == (0, 2)
    assert UNEVEN.stay((1,)) == (1, 1)
    assert UNEVEN.middle == (0, 2)
