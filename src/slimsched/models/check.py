"""Checks a model by running every plan; reports what is wrong, where, and how to fix it.

1. Every plan runs on batches of 1 and 3, and gives the outputs that the spec names.
2. The rows of a batch do not influence each other, and the same inputs give the same outputs.
3. Choices do not disturb each other: all are loaded first, then run.
4. The cut model gives the same results as the whole model, if there is one.
5. Shapes between segments depend on the choices only as the spec says; choices are listed narrowest first.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf, prod
from time import perf_counter
from typing import Any

import numpy as np
import torch
from msgspec import Struct, structs
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from slimsched.models.elastic import (
    DTYPES,
    ElasticModel,
    ModelError,
    PlanRun,
    Segment,
    Tensors,
    as_tensors,
    example_inputs,
    shape_text,
    step_text,
    users_code,
)
from slimsched.models.spec import ModelFigures, ModelSpec, Path, PlanTree, Step, StepFigures

# -- A segment's arithmetic and memory traffic, counted by running it once and watching every operator.
#
# Arithmetic comes from torch's own counter of floating-point operations, two per multiply-accumulate.
# Operators that the counter does not know (hand-written kernels) count as no arithmetic.


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


CPU_ATTENTION: dict[Any, Any] = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


class Traffic(Struct, frozen=True, kw_only=True):
    """One run of one segment, for a whole batch; all but `macs` count numbers, not bytes."""

    macs: int
    moved: int
    largest: int
    weights: int


def watch(segment: Segment, tensors: Tensors) -> tuple[Traffic, Tensors]:
    """Run a segment and return what was counted, and what it gives."""
    watcher = _Watcher(tensors)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its single operator is unknown to the counter
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as flops, watcher:
            given = segment(tensors)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    traffic = Traffic(
        macs=flops.get_total_flops() // 2,
        moved=watcher.moved,
        largest=watcher.largest,
        weights=sum(watcher.weights.values()),
    )
    return traffic, given


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operators read and write. A tensor that no operator has made is a weight."""

    def __init__(self, inputs: Tensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = self.largest = 0
        self.weights: dict[tuple[Any, ...], int] = {}
        self._made = {_memory(one) for one in inputs}
        self._kept: list[Any] = []  # keeps memory in use, so that no address appears twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        written = [one for one in tree_leaves(given) if isinstance(one, Tensor)]
        if func.is_view:
            return given
        for one in read:
            if _memory(one) not in self._made:
                self.weights[_memory(one), tuple(one.shape)] = one.numel()
        for one in written:
            if all(_memory(one) != _memory(other) for other in read if _memory(other) not in self._made):
                self._made.add(_memory(one))
        self._kept += written
        activations = sum(one.numel() for one in read if _memory(one) in self._made)
        activations += sum(one.numel() for one in written)
        self.moved += activations
        self.largest = max(self.largest, activations)
        return given


def _memory(tensor: Tensor) -> int:
    """Identify the memory of a tensor; views of one tensor share it."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # opaque layouts, such as oneDNN's, have no storage
        return id(tensor)


# -- The check itself.

ROWS = 3
MOST_COMPARED = 64
"""Compare at most this many plans with the whole model; larger models get a random sample."""

SHARED = "after other choices were loaded: choices share something that changes, such as a width attribute"
COPIES = "give each choice a copy of its own; adapters.Switched does it"

Arrays = dict[Path, Tensors]


class Problem(Struct, frozen=True, kw_only=True):
    """One thing to fix."""

    where: str
    what: str
    remedy: str = ""
    places: int = 1
    """How many places have this problem; `where` is the first."""


class Report(Struct, kw_only=True):
    """The results of a check. `figures` is set if every plan ran."""

    spec: ModelSpec
    problems: list[Problem] = []
    hints: list[str] = []
    figures: ModelFigures | None = None
    handed_bytes: dict[Path, int] = {}
    """Bytes per example that the last step of each path hands over, to the next segment or as the answer."""
    shapes: dict[Path, str] = {}
    compared: int = 0

    def add(self, where: str, what: str, remedy: str = "") -> None:
        """Add a problem; a known problem gets one more place."""
        for index, known in enumerate(self.problems):
            if (known.what, known.remedy) == (what, remedy):
                self.problems[index] = structs.replace(known, places=known.places + (known.where != where))
                return
        self.problems.append(Problem(where=where, what=what, remedy=remedy))


@torch.inference_mode()
def check_model(model: ElasticModel, *, advance: Callable[[str], None] = lambda stage: None) -> Report:
    """Check a model and find its figures by a dry run."""
    report, spec = Report(spec=model.spec), model.spec
    run = PlanRun(model)
    try:
        run.make_all()
        raw = example_inputs(model, ROWS)
        prepared = run.prepare(raw)
        alone = run.prepare(tuple(one[1:2] for one in raw))
    except ModelError as error:
        report.add(f"model '{spec.name}'", error.what, error.remedy)
        return report
    advance("three rows")
    batch = _run_all(run, prepared, report)
    if not report.problems:
        advance("one row")
        single = _run_all(run, alone, report)
    if report.problems:
        failures, report.problems = report.problems, []
        _check_shapes(spec, batch, report)  # report the usual cause first
        _look_for_shared_state(model, prepared, report)
        report.problems += failures
        return report
    _check_outputs(run, batch, report)
    _check_shapes(spec, batch, report)
    advance("again")
    if _repeats(model, run, prepared, batch, report):
        _check_rows(spec, batch, single, report)
    advance("whole")
    _check_whole(model, prepared, batch, report)
    advance("figures")
    report.handed_bytes = {
        path: sum(prod(one.shape[1:]) * one.element_size() for one in given) for path, given in batch.items()
    }
    report.shapes = {path: shape_text(given) for path, given in batch.items()}
    report.figures = count_figures(run, raw)
    _check_order(spec, report)
    return report


def _run_all(run: PlanRun, prepared: Tensors, report: Report) -> Arrays:
    def failed(path: Path, error: ModelError) -> None:
        where = step_text(run.spec, path)
        report.add(where, error.what.removeprefix(f"{where}: "), error.remedy)

    return dict(run.every_path(prepared, run.spec.plans, failed=failed))


def _look_for_shared_state(model: ElasticModel, prepared: Tensors, report: Report) -> None:
    """After a failure, check whether each plan runs when no other choice is loaded."""
    try:
        for plan in _sample(model.spec.plans):
            for _ in PlanRun(model).every_path(prepared, [plan]):
                pass
    except ModelError:
        return
    report.problems.append(
        Problem(
            where=f"model '{model.spec.name}'", what=f"every plan runs alone, but not {SHARED}", remedy=COPIES
        ),
    )


def _check_outputs(run: PlanRun, batch: Arrays, report: Report) -> None:
    """Compare finished outputs with the spec; report NaN and infinity."""
    spec = run.spec
    for plan in spec.plans:
        where = f"plan {spec.text(plan)}"
        try:
            outputs = run.finish(batch[plan])
        except ModelError as error:
            report.add(where, error.what, error.remedy)
            continue
        if len(outputs) != len(spec.outputs):
            report.add(
                where,
                f"gives {len(outputs)} outputs, but the spec names {len(spec.outputs)}",
                "list every output as [[output]] in model.toml, or return fewer",
            )
            continue
        for wanted, tensor in zip(spec.outputs, outputs, strict=True):
            shape, dtype = (ROWS, *wanted.shape), DTYPES[wanted.datatype]
            if tuple(tensor.shape) != shape or tensor.dtype != dtype:
                report.add(
                    where,
                    f"output '{wanted.name}' is {tuple(tensor.shape)} {tensor.dtype}, but the spec says "
                    f"{shape} {dtype}",
                    "correct [[output]] in model.toml, or change the output in finish()",
                )
            elif tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                report.add(
                    where,
                    f"output '{wanted.name}' holds NaN or infinity",
                    "look for a division by zero, or weights that were not loaded",
                )


def _check_shapes(spec: ModelSpec, batch: Arrays, report: Report) -> None:
    """Report shapes that depend on choices in a way that the spec does not allow."""
    handed: dict[tuple[int, ...], dict[str, Path]] = {}
    """By segment, and by segment and choice: the shapes, each with the first path that hands it over."""
    plans = set(spec.plans)
    for path, given in batch.items():
        if path in plans:
            continue  # outputs are compared with the spec
        for tensor in given:
            if not tensor.dim() or tensor.shape[0] != ROWS:
                report.add(
                    step_text(spec, path),
                    f"hands over {tuple(tensor.shape)} for a batch of {ROWS}",
                    "keep the batch as the first dimension of every tensor",
                )
        segment = len(path) - 1
        for place in ((segment,), (segment, path[-1])):
            handed.setdefault(place, {}).setdefault(shape_text(given), path)
    for (segment, *choice), shapes in handed.items():
        if len(shapes) == 1 or bool(choice) != spec.follows_previous:
            continue
        where = f"segment {segment}"
        what = "hands over " + " and ".join(f"{text} on {spec.text(path)}" for text, path in shapes.items())
        remedy = "set follows_previous = true, or hand over the same shape at every choice"
        if choice:
            where += f" at '{spec.segments[segment][choice[0]]}'"
            remedy = "make the shape depend on this segment's choice only"
        else:
            what += ", but the spec says follows_previous = false"
        report.add(where, what, remedy)
    if spec.follows_previous and all(len(handed[at]) == 1 for at in handed if len(at) == 1) and handed:
        report.hints.append(
            "every choice hands over the same shape: follows_previous = false is enough, and means fewer "
            "instances to load"
        )


def _check_rows(spec: ModelSpec, batch: Arrays, single: Arrays, report: Report) -> None:
    for path, given in batch.items():
        alone = single[path]
        for tensor, one in zip(given, alone, strict=True):
            if tensor.dim() and tensor.shape[0] == ROWS and not _close(tensor[1:2], one):
                report.add(
                    step_text(spec, path),
                    f"a result depends on the other rows of the batch (by {_gap(tensor[1:2], one):.1g})",
                    "call eval() on batch norms, and compute nothing across the batch",
                )
                return


def _repeats(model: ElasticModel, run: PlanRun, prepared: Tensors, batch: Arrays, report: Report) -> bool:
    """Run some plans again, first on the same segments, then on segments made just before each run."""
    plans = _sample(model.spec.plans)
    steady = "switch off dropout with eval(), draw no random numbers, and keep no state between calls"
    for again, when, remedy in (
        (run, "when it runs again on the same inputs", steady),
        (PlanRun(model), SHARED, COPIES),
    ):
        for path, given in again.every_path(prepared, plans):
            if not _all_close(given, batch[path]):
                report.add(step_text(model.spec, path), f"gives another result {when}", remedy)
                return False
    return True


def _check_whole(model: ElasticModel, prepared: Tensors, batch: Arrays, report: Report) -> None:
    spec = model.spec
    for plan in _sample(spec.plans):
        names = spec.names(plan)
        where = f"plan {spec.text(plan)}"
        try:
            with users_code(f"model '{spec.name}', whole({names})"):
                whole = model.whole(names)
                given = None if whole is None else as_tensors(whole(prepared), f"whole({names})")
        except ModelError as error:
            report.add(where, error.what, error.remedy)
            continue
        if given is None:
            continue
        report.compared += 1
        if not _all_close(given, batch[plan]):
            ours, theirs = shape_text(batch[plan]), shape_text(given)
            report.add(
                where,
                f"the cut model gives {ours}, the whole one {theirs}"
                if ours != theirs
                else "the cut model gives other numbers than the whole one",
                "look for a layer that the cut leaves out, runs twice or in another order",
            )


def _check_order(spec: ModelSpec, report: Report) -> None:
    """Report a choice that is cheaper than an earlier choice of the same segment."""
    assert report.figures is not None
    tree = PlanTree(spec.plans)
    totals = {plan: report.figures.plan_macs(spec, plan) for plan in spec.plans}
    cheapest: dict[Path, int] = {}
    for plan, total in totals.items():
        for length in range(1, len(plan) + 1):
            cheapest[plan[:length]] = min(total, cheapest.get(plan[:length], total))
    if not any(totals.values()):
        report.hints.append("no arithmetic was counted: the operators are not known to torch's flop counter")
    for path, rows in zip(tree.paths, tree.children, strict=True):
        children = [tree.paths[row] for row in rows]
        for before, after in pairwise(children):
            if cheapest[after] < cheapest[before]:
                names = spec.segments[len(path)]
                report.add(
                    f"segment {len(path)}",
                    f"choices are out of order: '{names[after[-1]]}' stands after '{names[before[-1]]}', but "
                    f"takes less arithmetic ({cheapest[after]:,} against {cheapest[before]:,} MACs)",
                    "list the choices of a segment narrowest first",
                )


@torch.inference_mode()
def count_figures(run: PlanRun, raw: Tensors, *, patience_s: float = inf) -> ModelFigures:
    """Return the figures that a model knows, or else count them in a dry run.

    Each step runs with one row and with all of them; the difference is the cost of the others. If one row
    alone takes longer than `patience_s`, nothing else runs.
    """
    if (known := run.model.figures()) is not None:
        return known
    began_s, rows = perf_counter(), len(raw[0]) - 1
    few, output = _watch_steps(run, run.prepare(tuple(one[1:2] for one in raw)))
    many, base = few, dict.fromkeys(few, Traffic(macs=0, moved=0, largest=0, weights=0))
    if perf_counter() - began_s > patience_s:
        rows = 1
    else:
        many, base = _watch_steps(run, run.prepare(raw))[0], few

    def per_row(step: Step, figure: str) -> int:
        more: int = getattr(many[step], figure) - getattr(base[step], figure)
        return max(0, round(more / rows))

    ordered = run.spec.steps()
    return ModelFigures(
        steps={step: StepFigures(per_row(step, "macs"), per_row(step, "moved")) for step in ordered},
        weights={at: max(few[s].weights for s in ordered if s[:2] == at) for at in run.spec.places()},
        output=output,
        workspace={
            at: max(per_row(s, "largest") for s in ordered if s[:2] == at) for at in run.spec.places()
        },
    )


def _watch_steps(run: PlanRun, prepared: Tensors) -> tuple[dict[Step, Traffic], dict[tuple[int, int], int]]:
    """Watch every step once, on as few plans as have them all; also count the numbers in each output."""
    seen: dict[Step, Traffic] = {}
    output: dict[tuple[int, int], int] = {}
    for plan in run.spec.plans:
        paths, tensors = [plan[:length] for length in range(1, len(plan) + 1)], prepared
        for path in paths if any(run.spec.step(path) not in seen for path in paths) else ():
            step = run.spec.step(path)
            with users_code(step_text(run.spec, path)):
                traffic, tensors = watch(run.segment(step), tensors)
            seen.setdefault(step, traffic)
            size = sum(prod(one.shape[1:]) for one in as_tensors(tensors, step_text(run.spec, path)))
            output[step[:2]] = max(output.get(step[:2], 0), size)
    return seen, output


def _sample(plans: Sequence[Path]) -> list[Path]:
    """Return all plans, or the narrowest, the widest and a random sample of the rest."""
    if len(plans) <= MOST_COMPARED:
        return list(plans)
    ordered = sorted(plans)
    picks = 1 + np.random.default_rng(0).choice(len(plans) - 2, MOST_COMPARED - 2, replace=False)
    return [ordered[0], *(ordered[int(pick)] for pick in sorted(picks)), ordered[-1]]


def _all_close(one: Tensors, other: Tensors) -> bool:
    return len(one) == len(other) and all(_close(a, b) for a, b in zip(one, other, strict=True))


def _close(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal up to rounding, which depends on precision and size of the numbers."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():
        return bool(torch.equal(one, other))
    scale = max(1e-6, float(one.float().abs().max())) if one.numel() else 1.0
    tolerance = 3e-2 if one.element_size() < 4 else 1e-3
    return bool(torch.allclose(one.float(), other.float(), rtol=tolerance, atol=tolerance * scale))


def _gap(one: Tensor, other: Tensor) -> float:
    if one.shape != other.shape or not one.numel():
        return float("inf")
    return float((one.double() - other.double()).abs().max())
