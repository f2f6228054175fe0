"""The front of a model at some cost: arithmetic, device time or energy per example. Imports no torch."""

from collections.abc import Sequence

from msgspec import Struct


class FrontPoint(Struct, frozen=True, kw_only=True):
    """A plan of a model with one of its costs."""

    model: str
    plan: str
    cost: float
    accuracy_percent: float


class CostFront(Struct, frozen=True, kw_only=True):
    """All plans of some models at one cost. `cost` names it, with its unit."""

    cost: str
    points: tuple[FrontPoint, ...]

    @property
    def models(self) -> list[str]:
        """The models, in order."""
        return list(dict.fromkeys(point.model for point in self.points))

    def of(self, model: str) -> list[FrontPoint]:
        """Return one model's plans."""
        return [point for point in self.points if point.model == model]

    def best(self) -> list[FrontPoint]:
        """Return the plans that no plan of any model beats."""
        return unbeaten(self.points)


def unbeaten(points: Sequence[FrontPoint]) -> list[FrontPoint]:
    """Return the plans that no other is as good as for the same or a lower cost, cheapest first."""
    kept: list[FrontPoint] = []
    for point in sorted(points, key=lambda one: (one.cost, -one.accuracy_percent)):
        if not kept or point.accuracy_percent > kept[-1].accuracy_percent:
            kept.append(point)
    return kept
