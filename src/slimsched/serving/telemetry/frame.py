"""A frame: all a dashboard shows of one moment, as one small JSON object."""

from msgspec import Struct


class ServerFrame(Struct, frozen=True, kw_only=True):
    """One server: what the gateway has out there by stage, and what the server last said of itself.

    `choices` are shares of the examples it ran lately at each choice, in the order of the frame's `names`. A
    server that is down has nothing to say: its own figures are 0.
    """

    name: str
    up: bool
    at: tuple[int, ...]
    queued: int
    instances: int
    utilization: float
    power_w: float
    vram_bytes: int
    choices: tuple[float, ...]
    examples_per_s: float


class Decision(Struct, frozen=True, kw_only=True):
    """A route the router chose and why."""

    at_s: float
    server: str
    stage: str
    choice: str
    examples: int
    reason: str


class Happening(Struct, frozen=True, kw_only=True):
    """Something worth telling people: a server went or came back."""

    at_s: float
    text: str


class Frame(Struct, frozen=True, kw_only=True):
    """Totals since the start, figures over the last seconds, servers, and the last decisions.

    A stage is one segment of one model: `stages` are their labels, `stage_models` the number of each one's
    model, and `stage_choices` its choices as places in `names`, the names of all choices, narrow to wide.
    `waiting` are requests in the central queue by the stage that comes next, `finished_per_s` examples that
    passed each stage, `mix` the shares of choices in each stage. `guard` counts the blocks that a learned
    router's guard decided about, by its reason. A figure is None while there is nothing to compute it from.
    """

    at_s: float
    phase: str
    router: str
    arrived: int
    answered: int
    dropped: int
    waiting: tuple[int, ...]
    finished_per_s: tuple[float, ...]
    arrival_per_s: float
    goodput_per_s: float
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_p99_s: float | None
    slo: float | None
    accuracy: float | None
    energy_j: float | None
    energy_source: str
    models: tuple[str, ...]
    stages: tuple[str, ...]
    stage_models: tuple[int, ...]
    stage_choices: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    choices: tuple[float, ...]
    mix: tuple[tuple[float, ...], ...]
    bound_accuracy: float | None
    bound_share: float | None
    servers: tuple[ServerFrame, ...]
    decisions: tuple[Decision, ...]
    guard: dict[str, int]
    happenings: tuple[Happening, ...]
