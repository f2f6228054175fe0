"""Whether a run kept a goal: each limit beside the figure that it reached."""

from collections.abc import Iterator

from msgspec import Struct

from slimsched.serving.routing.goal import Goal
from slimsched.serving.telemetry.summary import ModelSummary, Summary

SLACK, ACCURACY_SLACK = 0.01, 0.001
"""A limit counts as kept within 1 % of it, a floor within 0.1 points: routers aim at the limit itself."""


class LimitCheck(Struct, frozen=True, kw_only=True):
    """One limit of a goal, what the run reached, and whether that keeps the limit."""

    clause: str
    reached: str
    kept: bool
    model: str = ""


def check_goal(goal: Goal, row: Summary) -> list[LimitCheck]:
    """Hold a run against every limit of a goal, in the order in which limits yield."""
    checks: list[LimitCheck] = []
    figures: dict[str, Summary | ModelSummary] = {**row.models} if row.models else {"": row}
    for model, its in figures.items():
        checks += [*_accuracy(goal.of(model), its, model), *_latency(goal.of(model), its, model)]
    energy = _energy(goal, row)
    order = ("accuracy", "energy", "power")
    return sorted([*checks, *energy], key=lambda one: _place(one.clause, order))


def missed(goal: Goal, row: Summary) -> list[LimitCheck]:
    """Return the limits that a run did not keep."""
    return [check for check in check_goal(goal, row) if not check.kept]


def _place(clause: str, order: tuple[str, ...]) -> int:
    return next((at for at, name in enumerate(order) if clause.startswith(name)), len(order))


def _accuracy(goal: Goal, its: Summary | ModelSummary, model: str) -> Iterator[LimitCheck]:
    if goal.min_accuracy:
        yield LimitCheck(
            clause=f"accuracy>={100 * goal.min_accuracy:g}",
            reached=f"{100 * its.accuracy_prior:.2f} %",
            kept=its.accuracy_prior >= goal.min_accuracy - ACCURACY_SLACK,
            model=model,
        )


def _latency(goal: Goal, its: Summary | ModelSummary, model: str) -> Iterator[LimitCheck]:
    reached = {"p99": its.latency_p99_s, "p95": its.latency_p95_s, "mean": its.latency_mean_s}
    for limit in goal.latency_limits:
        value_s = reached[limit.figure]
        kept = value_s <= (1 + SLACK) * limit.limit_s
        yield LimitCheck(clause=limit.text, reached=f"{1e3 * value_s:.3g} ms", kept=kept, model=model)


def _energy(goal: Goal, row: Summary) -> Iterator[LimitCheck]:
    """Energy is known for the whole run: with several models, the mean over all of them is checked."""
    if goal.energy_j:
        yield LimitCheck(
            clause=f"energy<={1e3 * goal.energy_j:g}mJ",
            reached=f"{1e3 * row.energy_j_per_request:.3g} mJ",
            kept=row.energy_j_per_request <= (1 + SLACK) * goal.energy_j,
        )
    if goal.power_w:
        power_w = (row.energy_idle_j + row.energy_j_per_request * row.completed) / row.seconds
        kept = power_w <= (1 + SLACK) * goal.power_w
        yield LimitCheck(clause=f"power<={goal.power_w:g}W", reached=f"{power_w:.4g} W", kept=kept)
