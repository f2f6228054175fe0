"""The tuples worth running: no other is at least as accurate for no more arithmetic."""

from msgspec import Struct

from slimsched.models.accuracy import AccuracyTable
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.width import WIDTH_TUPLES


class ParetoPoint(Struct, frozen=True, kw_only=True):
    """A width tuple, what it costs and what it is worth."""

    widths: tuple[float, ...]
    macs: int
    accuracy_percent: float


def all_points(shape: NetworkShape, table: AccuracyTable) -> list[ParetoPoint]:
    """All 256 tuples, cheapest first; of equally cheap ones the most accurate first."""
    points = [
        ParetoPoint(
            widths=widths,
            macs=shape.total_macs(widths),
            accuracy_percent=round(100 * table.accuracy(widths), 2),
        )
        for widths in WIDTH_TUPLES
    ]
    return sorted(points, key=lambda point: (point.macs, -point.accuracy_percent))


def pareto_set(points: list[ParetoPoint]) -> list[ParetoPoint]:
    """Those that no other beats, cheapest first."""
    kept: list[ParetoPoint] = []
    for point in points:
        if not kept or point.accuracy_percent > kept[-1].accuracy_percent:
            kept.append(point)
    return kept
