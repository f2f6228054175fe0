"""A summary: one run as a row of figures, which `slim compare` prints for each router."""

from msgspec import Struct


class ModelSummary(Struct, frozen=True, kw_only=True):
    """The main figures of one model in a run that served several."""

    completed: int
    accuracy: float
    accuracy_prior: float
    latency_mean_s: float
    latency_p95_s: float
    latency_p99_s: float


class Summary(Struct, frozen=True, kw_only=True):
    """The figures of one run.

    All figures cover the time after the warm-up. `accuracy` is counted example by example where the quality
    table has examples; otherwise it is the prior of the plans served. `bound_share` is the number of correct
    answers per arrived request, divided by that of the fluid bound, which holds for routers that do not look
    at examples. `sure_bound_accuracy` and `sure_bound_share` are the same beside the bound of routers that
    stop when sure; they are 0 where the router does not judge answers. `energy_paper_j` is mean power ×
    latency, as in the paper. `energy_j_per_request` is the energy above idle per completed request, and
    `device_s_per_request` the time of all batches on devices per completed request.
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
    device_s_per_request: float = 0.0
    seconds: float
    bound_accuracy: float
    bound_share: float
    sure_bound_accuracy: float = 0.0
    sure_bound_share: float = 0.0
    wall_s: float
    requests_per_wall_s: float
