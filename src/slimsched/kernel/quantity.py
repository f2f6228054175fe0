"""The numbers that files and options may hold: types that are finite and have a range.

A struct that is read from a file, and a struct of options, takes its numbers from here:

    class Link(Struct, frozen=True, kw_only=True):
        bandwidth_bytes_per_s: PositiveAmount
        latency_s: Seconds

The conversion refuses what is out of range, NaN and infinity included, so no code behind it has to check
again. A test walks all such structs and fails on a number without a range.
"""

from typing import Annotated, Any, get_args, get_origin

from msgspec import Meta

LONGEST_S = 1e9
"""About 30 years: no time in a file or an option is longer."""

Seconds = Annotated[float, Meta(ge=0, le=LONGEST_S)]
"""A time that may be 0."""
PositiveSeconds = Annotated[float, Meta(gt=0, le=LONGEST_S)]
RunSeconds = Annotated[float, Meta(gt=0, le=1e7)]
"""The length of a run: at most about four months."""
Interval = Annotated[float, Meta(ge=1e-4, le=LONGEST_S)]
"""The time between two steps of something that repeats: a run of hours must not take billions of them."""
PhaseSeconds = Annotated[float, Meta(ge=1e-3, le=LONGEST_S)]
"""The mean length of a phase of the load."""
PollSeconds = Annotated[float, Meta(ge=0.05, le=LONGEST_S)]
"""The time between two looks at a real cluster."""
Deadline = Annotated[float, Meta(gt=0, le=1e18)]
"""Seconds until an answer is due; 1e18 stands for never."""
Milliseconds = Annotated[float, Meta(gt=0, le=1e12)]

Rate = Annotated[float, Meta(gt=0, le=1e9)]
"""Requests per second."""
FailureRate = Annotated[float, Meta(ge=0, le=24)]
"""Failures per machine and day; a repair takes an hour, so there cannot be more."""
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
PartialShare = Annotated[float, Meta(ge=0, lt=1)]
"""A share that always leaves something."""
AccuracyFloor = Annotated[float, Meta(ge=0, le=100)]
"""A percentage, or a share."""
Factor = Annotated[float, Meta(ge=1e-6, le=1e6)]
"""How many times as much."""
Amount = Annotated[float, Meta(ge=0, le=1e18)]
"""Watts, bytes per second, operations per second, and the like; may be 0."""
PositiveAmount = Annotated[float, Meta(gt=0, le=1e18)]
Finite = Annotated[float, Meta(ge=-1e18, le=1e18)]
"""A number that may be negative."""
LogMegabytes = Annotated[float, Meta(gt=0, le=1e9)]

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
CountOrZero = Annotated[int, Meta(ge=0, le=1_000_000)]
WorkerCount = Annotated[int, Meta(ge=0, le=1024)]
"""Processes to use; 0 stands for one per core."""
ThreadCount = Annotated[int, Meta(ge=1, le=1024)]
Repeats = Annotated[int, Meta(ge=2, le=1_000_000)]
"""Timed runs: a spread needs two."""
Index = Annotated[int, Meta(ge=-2, le=1_000_000)]
"""A place in a list; a negative one stands for none."""
Whole = Annotated[int, Meta(ge=0, le=2**53)]
"""A whole number up to where a float is still exact."""
Bytes = Whole
Identity = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""The number of a request or a block; gateways that share servers count from far apart."""
Percentage = Annotated[int, Meta(ge=1, le=100)]
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
FrontCount = Annotated[int, Meta(ge=0, le=64)]
"""Front processes of a server."""
Port = Annotated[int, Meta(ge=0, le=65_535)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]

Name = Annotated[str, Meta(min_length=1, max_length=200)]
"""A name that may become part of a path: shorter than the limits of file systems."""


def describe_range(annotation: Any) -> str:
    """Say which values a type of this file allows, in words; empty for a type without a range."""
    bounds = [one for one in _meta(annotation) if one.ge is not None or one.gt is not None]
    if not bounds:
        return ""
    low = f"above {bounds[0].gt:g} and up" if bounds[0].gt is not None else f"from {bounds[0].ge:g}"
    return f"{low} to {bounds[0].le:g}" if bounds[0].le is not None else f"{low} to below {bounds[0].lt:g}"


def _meta(annotation: Any) -> list[Meta]:
    own = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Meta)]
    return own + [meta for one in get_args(annotation) if get_origin(annotation) for meta in _meta(one)]
