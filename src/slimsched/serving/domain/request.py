"""A request: one image on its way through the four segments."""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from slimsched.models.width import SEGMENTS

NEVER_S = 1e18
"""A deadline that never comes; finite, so that it survives JSON."""


class Request(Struct, frozen=True, kw_only=True, gc=False, array_like=True):
    """One image and what its sender asks for; `widths` are those of the segments it has passed."""

    id: int
    arrival_s: float
    deadline_s: float = NEVER_S
    min_accuracy: float = 0.0
    priority: int = 0
    image: int = -1
    widths: tuple[float, ...] = ()
    width: float = 0.0  # asked for in every segment; 0: the router chooses
    max_energy_j: float = 0.0  # 0: no limit

    @property
    def segment(self) -> int:
        """The segment that comes next; 4 when all are done."""
        return len(self.widths)

    @property
    def previous(self) -> float | None:
        """Width of the segment before, None at the start."""
        return self.widths[-1] if self.widths else None

    @property
    def is_done(self) -> bool:
        """Whether the last segment has run."""
        return len(self.widths) == SEGMENTS

    @property
    def has_terms(self) -> bool:
        """Whether its sender limits what the router may choose."""
        return bool(self.min_accuracy or self.width or self.max_energy_j)

    def after(self, *widths: float) -> "Request":
        """The same request once its next segments have run at these widths."""
        return Request(  # written out: this runs for every request and segment
            id=self.id,
            arrival_s=self.arrival_s,
            deadline_s=self.deadline_s,
            min_accuracy=self.min_accuracy,
            priority=self.priority,
            image=self.image,
            widths=self.widths + widths,
            width=self.width,
            max_energy_j=self.max_energy_j,
        )

    def restarted(self) -> "Request":
        """The same request from its image again, its activation being lost."""
        return replace(self, widths=())


def alike(requests: Sequence[Request]) -> Iterator[tuple[Request, int]]:
    """Neighbours that came together, are due together and passed the same widths: the first, and how many."""
    first, count = requests[0], 0
    for request in requests:
        if (
            request.arrival_s == first.arrival_s
            and request.deadline_s == first.deadline_s
            and request.widths == first.widths
        ):
            count += 1
        else:
            yield first, count
            first, count = request, 1
    yield first, count
