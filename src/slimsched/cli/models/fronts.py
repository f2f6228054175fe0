"""`slim model pareto` with several models or devices: fronts by arithmetic, device time and energy."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from slimsched.models.pareto import CostFront, FrontPoint
from slimsched.models.spec import Path as Plan
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.execution.scenario_file import CONFIGS, load_profile

ARITHMETIC = "million multiply-accumulates per example"


def cost_fronts(models: Sequence[ServedModel], devices: Sequence[str]) -> list[CostFront]:
    """Return the fronts by arithmetic, then time and energy on each device that has a profile of all models.

    Time is the least device time per example over batch sizes and concurrency; energy is above idle.
    """
    fronts = [_front(ARITHMETIC, models, {model.name: _macs(model) for model in models})]
    for device in devices:
        profiles = {model.name: load_profile(device, model, Path(CONFIGS)) for model in models}
        scale, unit = (1e6, "µs") if _longest_s(models, profiles) < 1e-3 else (1e3, "ms")
        times = {model.name: _time(model, profiles[model.name], scale) for model in models}
        fronts.append(_front(f"{unit} of {device} per example", models, times))
        if all("modelled" not in profile.energy_source for profile in profiles.values()):
            energy = {model.name: _energy(model, profiles[model.name]) for model in models}
            fronts.append(_front(f"mJ above idle per example, {device}", models, energy))
    return fronts


def fronts_table(fronts: Sequence[CostFront]) -> None:
    """Print, for each cost, the plans that no plan of any model beats."""
    console = Console()
    for front in fronts:
        best = front.best()
        table = Table(
            title=f"{len(best)} of {len(front.points)} plans are Pareto-optimal", title_justify="left"
        )
        for column in ("model", "plan"):
            table.add_column(column)
        table.add_column(front.cost, justify="right")
        table.add_column("accuracy %", justify="right")
        for point in best:
            table.add_row(point.model, point.plan, f"{point.cost:.4g}", f"{point.accuracy_percent:.2f}")
        console.print(table)


Cost = Callable[[Plan], float]


def _front(cost: str, models: Sequence[ServedModel], by_model: dict[str, Cost]) -> CostFront:
    points = [
        FrontPoint(
            model=model.name,
            plan=model.spec.text(plan),
            cost=by_model[model.name](plan),
            accuracy_percent=round(100 * model.measured.accuracy(plan), 2),
        )
        for model in models
        for plan in model.spec.plans
    ]
    return CostFront(cost=cost, points=tuple(points))


def _macs(model: ServedModel) -> Cost:
    return lambda plan: model.figures.plan_macs(model.spec, plan) / 1e6


def _time(model: ServedModel, profile: Profile, scale: float) -> Cost:
    work_s = {key: profile.work_s(key, profile.batches[-1]) for key in model.keys.values()}
    return lambda plan: scale * sum(work_s[key] for key in model.legs(plan))


def _energy(model: ServedModel, profile: Profile) -> Cost:
    energy_j = {key: profile.least_energy_j(key, profile.batches[-1]) for key in model.keys.values()}
    return lambda plan: 1e3 * sum(energy_j[key] for key in model.legs(plan))


def _longest_s(models: Sequence[ServedModel], profiles: dict[str, Profile]) -> float:
    return max(_time(model, profiles[model.name], 1.0)(model.spec.widest) for model in models)
