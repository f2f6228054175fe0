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
LEAST_AGREEMENT = 0.99
"""Share of examples whose largest output must stay the same."""

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


def tune(
    model: ServedModel,
    device: torch.device,
    *,
    batch: int,
    examples: int,
    compiled: bool,
    progress: Callable[[RunOptions], None],
) -> tuple[list[Tried], Tried]:
    """Try every way; return all results, and the best one that keeps the answers."""
    ways = [*CANDIDATES]
    if compiled:
        ways += [RunOptions(compile=True), RunOptions(precision="bfloat16", channels_last=True, compile=True)]
    plans = sorted({model.spec.narrowest, model.spec.widest})
    wanted: list[torch.Tensor] = []
    tried: list[Tried] = []
    for options in ways:
        progress(options)
        tried.append(_try(model, device, options, plans, wanted, batch=batch, examples=examples))
    good = [one for one in tried if not one.trouble and one.agreement >= LEAST_AGREEMENT]
    best = max(good, key=lambda one: one.speed(tried[0]), default=tried[0])
    return tried, best if best.speed(tried[0]) >= LEAST_GAIN else tried[0]


@torch.inference_mode()
def _try(
    model: ServedModel,
    device: torch.device,
    options: RunOptions,
    plans: Sequence[Plan],
    wanted: list[torch.Tensor],
    *,
    batch: int,
    examples: int,
) -> Tried:
    """Run the plans one way, and compare its answers with the first way's."""
    try:
        hosted = HostedModel(model, load_elastic(model), device, options)
        inputs = hosted.inputs(examples)
        answers = [_run(model, hosted, plan, inputs)[0].float().argmax(-1).cpu() for plan in plans]
        some = tuple(tensor[:batch] for tensor in inputs)
        per_s = {model.spec.text(plan): _per_s(model, hosted, plan, some) for plan in plans}
    except (RuntimeError, TypeError, ValueError) as error:
        return Tried(options=options, per_s={}, agreement=0.0, trouble=str(error).splitlines()[0][:120])
    if not wanted:
        wanted += answers
    same = [float((a == b).float().mean()) for a, b in zip(answers, wanted, strict=True)]
    return Tried(options=options, per_s=per_s, agreement=min(same))


def _run(model: ServedModel, hosted: HostedModel, plan: Plan, inputs: Tensors) -> Tensors:
    rows: Tensors = tuple(tensor.to(hosted.device) for tensor in inputs)
    for key in model.legs(plan):
        rows = hosted.segment(key)(rows)
    return rows


def _per_s(model: ServedModel, hosted: HostedModel, plan: Plan, inputs: Tensors) -> float:
    """Measure examples per second: the median of a few runs, after two warm-up runs."""
    times_s = []
    for number in range(7):
        began_s = perf_counter()
        _run(model, hosted, plan, inputs)[0].cpu()
        if number >= 2:
            times_s.append(perf_counter() - began_s)
    return len(inputs[0]) / median(times_s)
