"""A run in one row: what `slim compare` prints for each router."""

from msgspec import Struct


class ModelSummary(Struct, frozen=True, kw_only=True):
    """The main figures of one model in a run that served several."""

    completed: int
    accuracy: float
    accuracy_prior: float
    latency_mean_s: float
    latency_p99_s: float


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of one run.

    `accuracy` is realised example by example where the table has them, else the prior of the plans served;
    `bound_share` is correct answers per arrived request over the fluid bound's. `energy_paper_j` is the
    paper's mean power × latency; `energy_j_per_request` is what devices drew above idle over completions.
    All are of the time after the warm-up.
    """

    router: str
    accuracy: float
    accuracy_prior: float
    latency_mean_s: float
    latency_sd_s: float
    latency_p50_s: float
    latency_p95_s: float
    latency_p99_s: float
    energy_paper_j: float
    energy_paper_sd_j: float
    energy_j_per_request: float
    energy_idle_j: float
    energy_source: str
    gpu_var: float
    gpu_var_sd: float
    power_mean_w: float
    arrived: int
    completed: int
    goodput_per_s: float
    slo_attainment: float
    dropped: int
    drops: dict[str, int]
    unfinished: int
    lost: int
    duplicates: int
    choices: dict[str, float]
    models: dict[str, ModelSummary] = {}
    batch_mean: float
    seconds: float
    bound_accuracy: float
    bound_share: float
    wall_s: float
    requests_per_wall_s: float
