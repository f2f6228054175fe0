"""The best batching rule for one instance, held against known answers."""

import numpy as np
import pytest

from benches import benchmark
from slimsched.core.config import ConfigError

smdp = benchmark("smdp")
BatchQueue, Sizes, least_to_start = smdp.BatchQueue, smdp.Sizes, smdp.least_to_start

RUN_S = [0.002 + 0.0005 * size for size in range(1, 9)]
ENERGY_J = [0.1 + 0.05 * size for size in range(1, 9)]


@pytest.mark.parametrize("load", [0.3, 0.9, 0.95])
def test_batches_of_one_wait_as_long_as_the_formula_for_constant_service_says(load: float) -> None:
    queue = BatchQueue(load, [1.0], [2.0])
    cost = queue.cost(queue.best())
    assert cost.latency_s == pytest.approx(1.0 + load / (2.0 * (1.0 - load)), rel=1e-6)
    assert cost.energy_j == pytest.approx(2.0)


def test_batches_that_take_no_time_start_when_waiting_costs_as_much_as_a_batch() -> None:
    """With N started at once, a request costs (N − 1) / 2λ of waiting and κ e / N: the best N is 14 here."""
    queue = BatchQueue(100.0, [1e-8] * 64, [1.0] * 64, joule_s=1.0)
    rule = queue.best()
    assert least_to_start(rule) == 14
    assert queue.mean_cost_s(rule) == pytest.approx(13 / 200 + 1 / 14, rel=1e-5)
    assert (rule[14:65] == np.arange(14, 65)).all()


@pytest.mark.parametrize("joule_s", [0.0, 0.02, 0.2])
@pytest.mark.parametrize("load", [0.2, 0.6, 0.9])
def test_no_rule_that_waits_for_some_number_is_better_than_the_best(load: float, joule_s: float) -> None:
    queue = BatchQueue(load * 8 / RUN_S[-1], RUN_S, ENERGY_J, joule_s)
    best = queue.mean_cost_s(queue.best())
    thresholds = [queue.mean_cost_s(queue.threshold(least)) for least in range(1, 9)]
    assert best <= min(thresholds) * (1.0 + 1e-9)
    assert best == pytest.approx(min(thresholds), rel=1e-3), "and one of them is about as good"


def test_the_more_a_joule_is_worth_the_longer_a_batch_waits() -> None:
    least = [
        least_to_start(BatchQueue(900.0, RUN_S, ENERGY_J, joule_s).best()) for joule_s in (0, 0.05, 0.5, 5)
    ]
    assert least == sorted(least)
    assert least[0] < least[-1] == 8


def test_where_time_does_not_depend_on_size_a_batch_takes_all_that_wait() -> None:
    queue = BatchQueue(500.0, [0.01] * 16, [1.0] * 16)
    rule = queue.best()
    started = rule[least_to_start(rule) :]
    assert (started == np.minimum(np.arange(least_to_start(rule), len(rule)), 16)).all()


@pytest.mark.parametrize("joule_s", [0.0, 0.5])
def test_a_long_run_costs_what_is_computed(joule_s: float) -> None:
    queue = BatchQueue(1000.0, RUN_S, ENERGY_J, joule_s)
    rule = queue.best()
    latency_s, energy_j = _run(rule, 1000.0, count=150_000)
    cost = queue.cost(rule)
    assert latency_s == pytest.approx(cost.latency_s, rel=0.02)
    assert energy_j == pytest.approx(cost.energy_j, rel=0.01)


def test_more_states_do_not_change_the_cost() -> None:
    costs = []
    for states in (120, 240):
        queue = BatchQueue(0.9 * 8 / RUN_S[-1], RUN_S, ENERGY_J, 0.1, states=states)
        costs.append(queue.mean_cost_s(queue.best()))
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)


def test_a_rate_that_cannot_be_served_is_refused_with_the_most_that_can() -> None:
    with pytest.raises(ConfigError, match="the best batch size serves 100/s; give a lower rate"):
        BatchQueue(100.0, [0.01], [1.0])


def _run(rule: Sizes, rate_per_s: float, count: int) -> tuple[float, float]:
    """Serve arrivals by a rule, one batch after the other; return mean latency and energy per request."""
    arrivals_s = np.cumsum(np.random.default_rng(1).exponential(1.0 / rate_per_s, count)).tolist()
    now_s = latency_s = energy_j = 0.0
    first = seen = 0
    while first < count:
        while seen < count and arrivals_s[seen] <= now_s:
            seen += 1
        size = int(rule[min(seen - first, len(rule) - 1)]) or (seen - first if seen == count else 0)
        if size == 0:
            now_s = arrivals_s[seen]
            continue
        now_s += RUN_S[size - 1]
        energy_j += ENERGY_J[size - 1]
        latency_s += sum([now_s - at_s for at_s in arrivals_s[first : first + size]])
        first += size
    return latency_s / count, energy_j / count
