"""The plans worth running: no other plan is at least as accurate for the same or less arithmetic."""

from msgspec import Struct

from slimsched.models.figures import ModelFigures
from slimsched.models.quality import QualityTable
from slimsched.models.spec import ModelSpec


class ParetoPoint(Struct, frozen=True, kw_only=True):
    """A plan with its cost and accuracy."""

    plan: str
    macs: int
    accuracy_percent: float


def all_points(spec: ModelSpec, figures: ModelFigures, quality: QualityTable) -> list[ParetoPoint]:
    """List all plans, cheapest first; equally cheap plans by accuracy, best first."""
    points = [
        ParetoPoint(
            plan=spec.text(plan),
            macs=figures.plan_macs(spec, plan),
            accuracy_percent=round(100 * quality.accuracy(plan), 2),
        )
        for plan in spec.plans
    ]
    return sorted(points, key=lambda point: (point.macs, -point.accuracy_percent))


def pareto_set(points: list[ParetoPoint]) -> list[ParetoPoint]:
    """Return the points that no other point beats, cheapest first."""
    kept: list[ParetoPoint] = []
    for point in points:
        if not kept or point.accuracy_percent > kept[-1].accuracy_percent:
            kept.append(point)
    return kept
