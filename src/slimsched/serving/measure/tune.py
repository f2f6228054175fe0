"""Tries the ways to run a model on a device, and finds the fastest one that keeps its answers."""

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import torch
from msgspec import Struct

from slimsched.models.elastic import RunOptions, Tensors
from slimsched.models.spec import Path as Plan
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.live.executor import HostedModel
from slimsched.serving.scenario.files import load_elastic

CANDIDATES = (
    RunOptions(),
    RunOptions(channels_last=True),
    RunOptions(precision="bfloat16"),
    RunOptions(precision="bfloat16", channels_last=True),
)
COMPILED = (RunOptions(compile=True), RunOptions(precision="bfloat16", channels_last=True, compile=True))
"""What can be tried besides; compiling takes minutes."""

LEAST_AGREEMENT = 0.99
"""Share of examples whose largest output must stay the same."""

NEAR = 0.01
"""Numbers are near, and outputs tied, if they differ by at most this share."""

LEAST_GAIN = 1.05
"""To be chosen, a way must be this much faster than the unchanged model."""


class Tried(Struct, frozen=True, kw_only=True):
    """One way to run: examples per second by plan, and agreement with the unchanged model's answers."""

    options: RunOptions
    per_s: dict[str, float]
    agreement: float
    trouble: str = ""

    def speed(self, other: "Tried") -> float:
        """Return how much faster this way is than another, as a mean over plans."""
        shares = [self.per_s[plan] / other.per_s[plan] for plan in self.per_s]
        return sum(shares) / len(shares) if shares else 0.0


@torch.inference_mode()
def tune(
    model: ServedModel,
    device: torch.device,
    ways: Sequence[RunOptions],
    plans: Sequence[Plan],
    *,
    batch: int,
    examples: int,
    progress: Callable[[RunOptions], None] = lambda way: None,
) -> tuple[list[Tried], Tried]:
    """Try ways, the unchanged model first; return all results, and the best one that keeps the answers."""
    wanted: list[torch.Tensor] = []
    tried: list[Tried] = []
    for options in ways:
        progress(options)
        try:
            hosted = HostedModel(model, load_elastic(model), device, options)
            inputs = hosted.inputs(examples)
            answers = [_run(hosted, plan, inputs)[0].float().cpu() for plan in plans]
            some = tuple(tensor[:batch] for tensor in inputs)
            per_s = {model.spec.text(plan): _per_s(hosted, plan, some) for plan in plans}
        except (RuntimeError, TypeError, ValueError) as error:
            trouble = str(error).splitlines()[0][:120]
            tried.append(Tried(options=options, per_s={}, agreement=0.0, trouble=trouble))
            continue
        wanted = wanted or answers
        agreement = min(_agreement(given, one) for given, one in zip(answers, wanted, strict=True))
        tried.append(Tried(options=options, per_s=per_s, agreement=agreement))
    good = [one for one in tried if not one.trouble and one.agreement >= LEAST_AGREEMENT]
    best = max(good, key=lambda one: one.speed(tried[0]), default=tried[0])
    return tried, best if best.speed(tried[0]) >= LEAST_GAIN else tried[0]


def _agreement(given: torch.Tensor, wanted: torch.Tensor) -> float:
    """Share of examples whose largest output is the same, or as good as tied with it in the unchanged model.

    Of outputs with one number, the share of those that are near.
    """
    if given.dim() > 1 and given.shape[-1] > 1:
        most, least = wanted.amax(-1), wanted.amin(-1)
        chosen = wanted.gather(-1, given.argmax(-1, keepdim=True)).squeeze(-1)
        same = (most - chosen <= NEAR * (most - least)) & given.isfinite().all(-1)
    else:
        same = torch.isclose(given, wanted, rtol=NEAR, atol=NEAR * float(wanted.abs().mean()))
    return float(same.float().mean())


def _run(hosted: HostedModel, plan: Plan, inputs: Tensors) -> Tensors:
    rows: Tensors = tuple(tensor.to(hosted.device) for tensor in inputs)
    for key in hosted.served.legs(plan):
        rows = hosted.segment(key)(rows)
    return rows


def _per_s(hosted: HostedModel, plan: Plan, inputs: Tensors) -> float:
    """Measure examples per second: the median of a few runs, after two warm-up runs."""
    times_s = []
    for _ in range(7):
        began_s = perf_counter()
        _run(hosted, plan, inputs)[0].cpu()
        times_s.append(perf_counter() - began_s)
    return len(inputs[0]) / median(times_s[2:])
