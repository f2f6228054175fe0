"""A training job: a gang of GPUs that iterates on a model until its work is done."""

from msgspec import Struct

from slimsched.kernel.quantity import Count, CountOrZero, Finite, Seconds


class Job(Struct, frozen=True, kw_only=True, gc=False):
    """One training job; it runs on all of its GPUs at once or not at all.

    `service_s` is its work: the seconds it would run on its most consolidated placement with the
    network to itself. Only the simulator and the policies that are told durations read it (a live
    cluster leaves it at 0). `limit_s` is the time limit the user gave, if any; backfill relies on it.
    `machines` is how many machines the user asked for, in equal shares; 0 leaves that to the scheduler. Only
    policies that stand for a scheduler that must obey follow it.
    """

    id: str
    arrival_s: Finite
    gpus: Count
    service_s: Seconds = 0.0
    model: str = ""
    tenant: str = ""
    limit_s: Seconds | None = None
    machines: CountOrZero = 0
