from pathlib import Path

from cluster import toy_model
from slimsched.models.pareto import CostFront, FrontPoint, all_points, pareto_set, plot_fronts, plot_pareto
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.serving.scenario.files import shipped_model

MODEL = shipped_model()
POINTS = all_points(MODEL.spec, MODEL.figures, MODEL.quality)
BEST = pareto_set(POINTS)


def test_no_plan_beats_a_pareto_plan() -> None:
    for best in BEST:
        assert not any(
            point.macs <= best.macs and point.accuracy_percent > best.accuracy_percent for point in POINTS
        )


def test_every_other_plan_is_beaten() -> None:
    for point in POINTS:
        assert any(
            best.macs <= point.macs and best.accuracy_percent >= point.accuracy_percent for best in BEST
        )


def test_accuracy_rises_with_cost_along_the_set() -> None:
    assert [point.macs for point in BEST] == sorted(point.macs for point in BEST)
    assert len({point.accuracy_percent for point in BEST}) == len(BEST)


def test_points_of_a_model_with_an_early_exit_are_its_plans() -> None:
    model = toy_model(plans=[(0,), (1, 0), (1, 1)], accuracies=[0.6, 0.7, 0.65])
    points = all_points(model.spec, model.figures, model.quality)
    assert [point.plan for point in points] == [model.spec.text(plan) for plan in model.spec.plans]
    assert [point.accuracy_percent for point in pareto_set(points)] == [60.0, 70.0]


def test_the_plot_is_written(tmp_path: Path) -> None:
    plot_pareto(POINTS, BEST, tmp_path / "pareto.png", PUBLISHED_PERCENT)
    assert (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")


def point(model: str, cost: float, percent: float) -> FrontPoint:
    return FrontPoint(model=model, plan=f"{cost:g}", cost=cost, accuracy_percent=percent)


BOTH = CostFront(
    cost="ms", points=(point("a", 1, 60), point("a", 3, 70), point("b", 2, 65), point("b", 4, 70))
)


def test_plans_of_several_models_compete() -> None:
    assert [(one.model, one.cost) for one in BOTH.best()] == [("a", 1), ("b", 2), ("a", 3)]


def test_fronts_of_several_models_are_drawn_beside_each_other(tmp_path: Path) -> None:
    plot_fronts([BOTH, BOTH, BOTH], tmp_path / "fronts.png")
    assert (tmp_path / "fronts.png").read_bytes().startswith(b"\x89PNG")
