"""Fit a Markov-modulated Poisson process to a trace of real arrivals.

    python benchmarks/fit_arrivals.py TRACE [--states 3] [--bin-s 1] > fitted.json

The counts in short bins are modelled as a hidden Markov chain with Poisson observations. Expectation
maximization (Baum and Welch) finds its parameters:

    α_t(j) ∝ Σ_i α_{t-1}(i) P_ij · Poisson(n_t | λ_j),   β_t(i) ∝ Σ_j P_ij · Poisson(n_{t+1} | λ_j) β_{t+1}(j)
    λ_j = Σ_t γ_t(j) n_t / Σ_t γ_t(j),                   P_ij = Σ_t ξ_t(i, j) / Σ_t γ_t(i)

A state that stays with probability P_ii per bin lasts bin / (1 − P_ii) on average. The process that ships
with the package, `src/slimsched/serving/workload/azure_llm_2023_conv.json`, was made this way.
"""

import argparse
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from slimsched.serving.workload.arrivals import ModulatedPoisson, RequestTrace, read_request_trace

ROUNDS = 300
Floats = NDArray[np.float64]


def fit(
    counts: Floats, bin_s: float, states: int, *, source: str = "", command: str = ""
) -> ModulatedPoisson:
    """Return the process that explains these counts best."""
    means = np.quantile(counts, (np.arange(states) + 0.5) / states) + 1e-3 * np.arange(1, states + 1)
    transitions = np.full((states, states), 0.05 / max(1, states - 1))
    np.fill_diagonal(transitions, 0.95)
    for _ in range(ROUNDS):
        means, transitions = _em_step(counts, means, transitions)
    stay = np.diag(transitions)
    jumps = np.where(np.eye(states) > 0, 0.0, transitions).round(6)
    jumps /= jumps.sum(axis=1, keepdims=True)
    process = ModulatedPoisson(
        source=source,
        command=command,
        rate_per_s=_round(float(counts.mean() / bin_s)),
        rates=tuple(means.tolist()),
        lasts_s=tuple(_round(bin_s / (1.0 - one)) for one in stay),
        jumps=tuple(tuple(row) for row in jumps.tolist()),
    )
    long_run = float(process.share_of_time() @ means)
    return msgspec.structs.replace(process, rates=tuple(_round(one / long_run) for one in means.tolist()))


def _em_step(counts: Floats, means: Floats, transitions: Floats) -> tuple[Floats, Floats]:
    """Do one round of expectation and maximization."""
    log_likely = counts[:, None] * np.log(means) - means - gammaln(counts + 1.0)[:, None]
    likely = np.exp(log_likely - log_likely.max(axis=1, keepdims=True))  # (bins, states), scaled
    bins, states = likely.shape
    forward, backward = np.empty((bins, states)), np.ones((bins, states))
    forward[0] = likely[0] / likely[0].sum()
    for t in range(1, bins):
        row = (forward[t - 1] @ transitions) * likely[t]
        forward[t] = row / row.sum()
    for t in range(bins - 2, -1, -1):
        row = transitions @ (likely[t + 1] * backward[t + 1])
        backward[t] = row / row.sum()
    given = forward * backward
    given /= given.sum(axis=1, keepdims=True)
    pairs = forward[:-1, :, None] * transitions * (likely[1:] * backward[1:])[:, None, :]
    pairs /= pairs.sum(axis=(1, 2), keepdims=True)
    moved = pairs.sum(axis=0)
    return given.T @ counts / given.sum(axis=0), moved / moved.sum(axis=1, keepdims=True)


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def counts_in(trace: RequestTrace, bin_s: float) -> NDArray[np.float64]:
    """Return the requests in each bin; a trace of counts keeps its own intervals."""
    if trace.times_s is not None:
        edges = np.arange(0.0, trace.times_s[-1] + bin_s, bin_s)
        return np.histogram(trace.times_s, edges)[0].astype(np.float64)
    assert trace.counts is not None
    return trace.counts


def main() -> None:
    """Fit the given trace and print the process as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--states", type=int, default=3)
    parser.add_argument("--bin-s", type=float, default=1.0)
    parser.add_argument("--source", default="", help="where the trace comes from")
    options = parser.parse_args()
    command = (
        f"python benchmarks/fit_arrivals.py {options.trace.name} "
        f"--states {options.states} --bin-s {options.bin_s:g}"
    )
    trace = read_request_trace(options.trace)
    source = options.source or trace.name
    process = fit(
        counts_in(trace, options.bin_s), options.bin_s, options.states, source=source, command=command
    )
    print(msgspec.json.format(msgspec.json.encode(process), indent=1).decode())


if __name__ == "__main__":
    main()
