"""Why a job waits, in words a user can act on."""

from msgspec import Struct

from slimsched.jobs.domain.placement import Tier


class Domain(Struct, frozen=True, kw_only=True):
    """A machine, a rack or the cluster, with what is free in it and what a gang would need."""

    tier: Tier
    name: str
    free_gpus: int
    missing_gpus: int


class Explanation(Struct, frozen=True, kw_only=True):
    """What the scheduler knows about one job at one time."""

    job_id: str
    state: str
    gpus: int
    waited_s: float = 0.0
    queue_position: int | None = None
    allowed_tier: Tier | None = None
    next_tier: Tier | None = None
    timer_left_s: float | None = None
    declined_offers: int = 0
    nearest: Domain | None = None
    victims_considered: tuple[str, ...] = ()
    reason: str = ""
