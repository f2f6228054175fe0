from pathlib import Path

from cluster import toy_model
from slimsched.cli.models.evaluate import cost_fronts
from slimsched.models.quality import CostFront, FrontPoint, plot_fronts
from slimsched.models.shipped import PUBLISHED_PERCENT
from slimsched.serving.scenario.files import shipped_model

MODEL = shipped_model()
FRONT = cost_fronts([MODEL], [])[0]
POINTS, BEST = FRONT.points, FRONT.best()


def test_no_plan_beats_a_pareto_plan() -> None:
    for best in BEST:
        assert not any(
            point.cost <= best.cost and point.accuracy_percent > best.accuracy_percent for point in POINTS
        )


def test_every_other_plan_is_beaten() -> None:
    for point in POINTS:
        assert any(
            best.cost <= point.cost and best.accuracy_percent >= point.accuracy_percent for best in BEST
        )


def test_accuracy_rises_with_cost_along_the_set() -> None:
    assert [point.cost for point in BEST] == sorted(point.cost for point in BEST)
    assert len({point.accuracy_percent for point in BEST}) == len(BEST)


def test_points_of_a_model_with_an_early_exit_are_its_plans() -> None:
    model = toy_model(plans=[(0,), (1, 0), (1, 1)], accuracies=[0.6, 0.7, 0.65])
    front = cost_fronts([model], [])[0]
    assert [point.plan for point in front.points] == [model.spec.text(plan) for plan in model.spec.plans]
    assert [point.accuracy_percent for point in front.best()] == [60.0, 70.0]


def test_the_plot_is_written(tmp_path: Path) -> None:
    plot_fronts([FRONT], tmp_path / "pareto.png", PUBLISHED_PERCENT)
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
