"""The cluster as it is known before a run: servers, profiles, links and models.

Also what happens to servers (faults), what they report (snapshots), and where they stand (hosts, links).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import (
    Amount,
    Count,
    CountOrZero,
    Factor,
    Percentage,
    PositiveAmount,
    PositiveShare,
    Seconds,
    SlimError,
)
from slimsched.models.quality import QualityTable
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Key


class Link(Struct, frozen=True, kw_only=True):
    """Connects a server (or the gateway) to the network, equally fast in both directions.

    Between two places the slower link sets the pace and both latencies add up. Transfers queue.
    """

    bandwidth_bytes_per_s: PositiveAmount  # bytes per second, in each direction
    latency_s: Seconds  # time of an empty message


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry of a fault timeline; `slowdown` multiplies all latencies, and 1 is the profile's own speed.

    A killed server loses its work. So does a hung server, but it takes longer until that is noticed. A
    server that leaves takes no new work and finishes what it has. `slow-link` divides the bandwidth
    of its link.
    """

    server: str  # which server
    at_s: Seconds  # when
    kind: Literal["kill", "hang", "leave", "restore", "slow", "slow-link"]  # what happens
    slowdown: Factor = 1.0  # for slow and slow-link: how many times slower


class InstanceState(StrEnum):
    """The states of an instance."""

    LOADING = "loading"
    FREE = "free"
    BUSY = "busy"
    UNLOADING = "unloading"
    GONE = "gone"


TRANSITIONS: dict[str, tuple[InstanceState, InstanceState]] = {
    "loaded": (InstanceState.LOADING, InstanceState.FREE),
    "run": (InstanceState.FREE, InstanceState.BUSY),
    "finished": (InstanceState.BUSY, InstanceState.FREE),
    "unload": (InstanceState.FREE, InstanceState.UNLOADING),
    "unloaded": (InstanceState.UNLOADING, InstanceState.GONE),
}
"""Each step: the state in which it is possible, and the state after it."""


class Instance(Struct, frozen=True, kw_only=True):
    """One segment at one choice, loaded on a device, to run one batch at a time.

    In a nested model it can run narrower choices too.
    """

    id: int
    segment: int
    choice: int
    memory_bytes: int
    model: int = 0

    @property
    def place(self) -> tuple[int, int, int]:
        """(model, segment, choice)."""
        return self.model, self.segment, self.choice


def next_state(instance: Instance, state: InstanceState, step: str) -> InstanceState:
    """Return the state after a step; an impossible step is an error."""
    before, after = TRANSITIONS[step]
    if state is not before:
        raise SlimError(
            f"instance {instance.id} (segment {instance.segment} at choice {instance.choice}) is {state}: "
            f"it cannot take the step '{step}'"
        )
    return after


class ServerSnapshot(Struct, frozen=True, kw_only=True):
    """What a server last reported about itself.

    `queued` counts waiting requests by model and segment. The sources say where power, utilization and memory
    come from. `waiting` says, by key, why the batches that were tried last could not run. `refused` counts
    since the start how often an instance was not loaded, by cause: memory or utilization.
    """

    taken_s: float
    utilization: float
    power_w: float
    vram_bytes: int
    queued: tuple[int, ...]
    instances: int
    power_source: str = ""
    utilization_source: str = ""
    memory_source: str = ""
    waiting: dict[str, str] = {}
    refused: dict[str, int] = {}


GATEWAY_NAME = "gateway"
AUTOSCALER_NAME = "autoscaler"
"""The names of state machines in a cluster's event log."""


def life_name(server: str, life: int) -> str:
    """Name one life of a server: 'server-0', then 'server-0#2' after it has died and started again."""
    return server if life == 1 else f"{server}#{life}"


def server_of(machine: str) -> str:
    """Return a server's name without the number of its life."""
    return machine.partition("#")[0]


CUDA_INSTANCES = 64
"""PyTorch has that many streams on a GPU, and each instance needs one of its own."""


class Host(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The device a server process uses, and its share of it.

    On a CPU: the number of threads, the cores they are bound to, and the speed. Below 1, the server rests
    after each batch to act like a slower one. On a GPU: its index, and the share of it that MPS allows. On
    Ray: the resources that the node must offer, and the labels it must have. `precision` is for models that
    do not say how they run: shipped and trained ones do, and folders with a run.toml.
    """

    kind: Literal["cpu", "cuda"] = "cpu"  # what the server runs on
    threads: Count = 1  # CPU threads
    cores: tuple[CountOrZero, ...] = ()  # cores that the threads are bound to; empty: any
    speed: PositiveShare = 1.0  # below 1 the server rests after each batch to act slower
    gpu: CountOrZero = 0  # number of the GPU
    slice: str = ""  # identifier of a MIG slice of the GPU; empty: the whole GPU
    mps_percentage: Percentage = 100  # share of the GPU that MPS allows
    precision: Literal["", "fp32", "bf16", "fp16"] = ""  # of models without run options of their own
    resources: dict[str, Amount] = {}  # resources that a Ray node must offer
    labels: dict[str, str] = {}  # labels that a Ray node must have

    @property
    def instance_limit(self) -> int:
        """The most instances that the device can hold at once, whatever its memory; 0: no such limit."""
        return CUDA_INSTANCES if self.kind == "cuda" else 0


Values = NDArray[np.float64]

GATEWAY = -1
"""The gateway's place: it holds a request's input before the first segment."""


@dataclass(eq=False, repr=False, kw_only=True)
class Cluster:
    """Static facts that a router may use; servers and models are numbered in order.

    A model that was taken away keeps its number, so that requests under way can still be answered: it is one
    of `models`, but none of the `active` ones.
    """

    names: Sequence[str]
    profiles: Sequence[Profile]
    models: Sequence[ServedModel]
    links: Sequence[Link]
    gateway_link: Link
    batch_limit: int
    retired: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        profiles, batch_limit = self.profiles, self.batch_limit
        self.models = tuple(model.numbered(number) for number, model in enumerate(self.models))
        self.active = tuple(model for model in self.models if model.number not in self.retired)
        """The models that take new requests."""
        self._moves: dict[tuple[int, int, int, int], tuple[Values, Values]] = {}
        self._work_s: dict[tuple[Key, int], float] = {}
        keys = [key for model in self.models for key in model.keys.values()]
        kinds = {id(profile): profile for profile in profiles}
        cheapest = {k: {key: p.work_s(key, batch_limit) for key in keys} for k, p in kinds.items()}
        self.work_s: dict[Key, Values] = {
            key: np.array([cheapest[id(p)][key] for p in profiles]) for key in keys
        }
        """Least device time per example: by key, one value per server."""
        self.latency_s: dict[Key, Values] = {
            key: np.array([p.latency_s(key, 1) for p in profiles]) for key in keys
        }
        """Time of a batch of one on an idle device: by key, one value per server."""

    def __len__(self) -> int:
        return len(self.names)

    def part(self, pick: slice) -> "Cluster":
        """Return the same cluster with only some of its servers."""
        return replace(self, names=self.names[pick], profiles=self.profiles[pick], links=self.links[pick])

    def with_model(self, model: ServedModel, profiles: Sequence[Profile]) -> "Cluster":
        """The same cluster with one more model, last in the list; `profiles` has its own by server."""
        joined: dict[int, Profile] = {}
        for whole, part in zip(self.profiles, profiles, strict=True):
            if id(whole) not in joined:  # servers with equal profiles must share them
                joined[id(whole)] = Profile.joined([*whole.parts, part])
        return replace(
            self, profiles=[joined[id(whole)] for whole in self.profiles], models=[*self.models, model]
        )

    def rated(self, number: int, quality: QualityTable) -> "Cluster":
        """The same cluster where a model has another quality table."""
        models = list(self.models)
        models[number] = models[number].with_quality(quality)
        return replace(self, models=models)

    def without(self, numbers: Collection[int]) -> "Cluster":
        """The same cluster where these models take no new requests."""
        return replace(self, retired=self.retired | frozenset(numbers))

    def link_of(self, place: int) -> Link:
        """Return the link that connects a server, or the gateway, to the network."""
        return self.gateway_link if place == GATEWAY else self.links[place]

    def input_bytes(self, key: Key, source: int) -> int:
        """Return the bytes per example of the input to a key's first segment, as stored at `source`."""
        element_bytes = 1 if source == GATEWAY else self.profiles[source].element_bytes
        return self.models[key.model].input_bytes(key.segment, key.previous, element_bytes)

    def key_s(self, key: Key, server: int) -> float:
        """Return the least device time per example of all segments of a key, on one server."""
        known = self._work_s.get((key, server))
        if known is None:
            known = self._work_s[key, server] = sum([float(self.work_s[leg][server]) for leg in key.legs])
        return known

    def plan_s(self, model: ServedModel, plan: tuple[int, ...], done: int = 0) -> Values:
        """Return the least device time per example of a plan after `done` segments, one value per server."""
        total: Values = np.sum([self.work_s[key] for key in model.legs(plan)[done:]], axis=0)
        return total

    def move_s(self, model: int, segment: int, previous: int, source: int, count: int) -> Values:
        """Return the time to move the inputs of `count` examples to each server, on idle links."""
        known = self._moves.get((model, segment, previous, source))
        if known is None:
            size = self.input_bytes(Key(segment, 0, previous, (), model), source)
            away = self.link_of(source)
            fixed_s = np.array([away.latency_s + link.latency_s for link in self.links])
            each_s = np.array(
                [size / min(away.bandwidth_bytes_per_s, link.bandwidth_bytes_per_s) for link in self.links]
            )
            if source != GATEWAY:
                fixed_s[source] = each_s[source] = 0.0
            known = self._moves[model, segment, previous, source] = (fixed_s, each_s)
        return known[0] + count * known[1]
