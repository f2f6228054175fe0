"""A frame: everything a dashboard shows at one moment, as one small JSON object."""

from typing import Literal

from msgspec import Struct


class ServerFrame(Struct, frozen=True, kw_only=True):
    """One server: how many of the gateway's requests it has by stage, and its own last report.

    `choices` are the shares of recent examples that ran at each choice, in the order of the frame's `names`.
    While a server is down its own figures are 0. `given_up` says that it cannot be started.
    """

    name: str
    up: bool
    given_up: bool
    at: tuple[int, ...]
    queued: int
    instances: int
    utilization: float
    power_w: float
    vram_bytes: int
    choices: tuple[float, ...]
    examples_per_s: float


class Decision(Struct, frozen=True, kw_only=True):
    """A route that the router chose, and why."""

    at_s: float
    server: str
    stage: str
    choice: str
    examples: int
    reason: str


class Happening(Struct, frozen=True, kw_only=True):
    """Something worth showing; charts mark servers that went down or came back, and changes of the goal."""

    at_s: float
    text: str
    kind: Literal["down", "up", "goal", "note"] = "note"


class Limit(Struct, frozen=True, kw_only=True):
    """A limit of the goal as a user writes it, and whether it is kept now."""

    text: str
    kept: bool


class Frame(Struct, frozen=True, kw_only=True):
    """Totals since the start, figures over the last seconds, the servers, and the last decisions.

    A stage is one segment of one model. `stages` holds the labels of all stages, `stage_models` the number of
    each stage's model, and `stage_choices` its choices as indices into `names`. `names` holds the names of
    all choices, narrow to wide. `waiting` counts the requests in the central queue by their next stage.
    `finished_per_s` is how many examples per second passed each stage, and `mix` holds the shares of choices
    in each stage. `guard` counts the blocks that the guard of the goal router decided about, by reason;
    `judged` counts answers by why they were sent, where the router judges them. `bound_accuracy` is the fluid
    bound of routers that do not look at examples, `sure_bound_accuracy` that of routers that stop when sure.
    `limits` are those of the goal, in the order in which they yield, where a running router follows one.
    A figure is None while there is nothing to compute it from.
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
    latency_mean_s: float | None = None
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
    sure_bound_accuracy: float | None = None
    servers: tuple[ServerFrame, ...]
    decisions: tuple[Decision, ...]
    guard: dict[str, int]
    judged: dict[str, int] = {}
    limits: tuple[Limit, ...] = ()
    happenings: tuple[Happening, ...]
