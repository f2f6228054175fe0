"""Runs a model's plans in one process. Plans with equal beginnings share that work."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.model_error import ModelError, users_code
from slimsched.models.spec import ModelSpec, Path, Step

Arrived = tuple[Path, Tensors]
"""A path and the output of its last step."""


class PlanRun:
    """Runs plans of a model; makes each segment once and keeps it."""

    def __init__(self, model: ElasticModel) -> None:
        self.model, self.spec = model, model.spec
        self._segments: dict[Step, Segment] = {}

    def make_all(self) -> None:
        """Make all segments before running any, as a server does."""
        for step in self.spec.steps():
            self.segment(step)

    def segment(self, step: Step) -> Segment:
        """Return the segment of a step."""
        if step not in self._segments:
            self._segments[step] = make_segment(self.model, step)
        return self._segments[step]

    def prepare(self, raw: Tensors) -> Tensors:
        """Run the model's own `prepare`."""
        with users_code(f"model '{self.spec.name}', prepare"):
            return as_tensors(self.model.prepare(raw), "prepare")

    def finish(self, last: Tensors) -> Tensors:
        """Run the model's own `finish`."""
        with users_code(f"model '{self.spec.name}', finish"):
            return as_tensors(self.model.finish(last), "finish")

    def step(self, path: Path, tensors: Tensors) -> Tensors:
        """Run the last step of a path on the output of the step before."""
        segment, where = self.segment(self.spec.step(path)), step_text(self.spec, path)
        with users_code(where):
            return as_tensors(segment(tensors), where)

    def every_path(
        self,
        prepared: Tensors,
        plans: Iterable[Path],
        *,
        failed: Callable[[Path, ModelError], None] | None = None,
    ) -> Iterator[Arrived]:
        """Run all plans depth first and yield the output of every path, including complete plans.

        With `failed`, a path that raises is reported, and longer paths that begin with it are skipped.
        """
        yield from self._descend((), prepared, sorted(set(plans)), failed)

    def outputs(self, raw: Tensors, plans: Sequence[Path]) -> Iterator[Arrived]:
        """Run plans from raw inputs to finished outputs."""
        wanted = set(plans)
        for path, tensors in self.every_path(self.prepare(raw), plans):
            if path in wanted:
                yield path, self.finish(tensors)

    def _descend(
        self,
        path: Path,
        tensors: Tensors,
        plans: list[Path],
        failed: Callable[[Path, ModelError], None] | None,
    ) -> Iterator[Arrived]:
        depth = len(path)
        for choice in sorted({plan[depth] for plan in plans if len(plan) > depth}):
            longer = (*path, choice)
            try:
                given = self.step(longer, tensors)
            except ModelError as error:
                if failed is None:
                    raise
                failed(longer, error)
                continue
            yield longer, given
            yield from self._descend(
                longer, given, [plan for plan in plans if plan[: depth + 1] == longer], failed
            )


def make_segment(model: ElasticModel, step: Step) -> Segment:
    """Ask a model for one segment, by the names of its choices."""
    segment, choice, previous = step
    names = model.spec.segments
    before = names[segment - 1][previous] if previous >= 0 else None
    with users_code(f"model '{model.spec.name}', making segment {segment} at '{names[segment][choice]}'"):
        made = model.segment(segment, names[segment][choice], before)
    if not callable(made):
        raise ModelError(
            f"segment({segment}, '{names[segment][choice]}', …) of model '{model.spec.name}' returned "
            f"{type(made).__name__}",
            remedy="return a callable that takes and gives a tuple of tensors",
        )
    return made


def as_tensors(given: object, where: str) -> Tensors:
    """Return `given` if it is a tuple of tensors, else raise ModelError."""
    if isinstance(given, tuple) and given and all(isinstance(one, Tensor) for one in given):
        return given
    hint = "write return (y,)" if isinstance(given, Tensor) else "return a tuple of tensors"
    raise ModelError(f"{where} returned {type(given).__name__} instead of a tuple of tensors", remedy=hint)


def step_text(spec: ModelSpec, path: Path) -> str:
    """Describe the last step of a path in words."""
    number, names = len(path) - 1, spec.segments
    came = f" after '{names[number - 1][path[-2]]}'" if number else ""
    return f"model '{spec.name}', segment {number} at '{names[number][path[-1]]}'{came}"


@torch.inference_mode()
def run_plan(model: ElasticModel, plan: Path, raw: Tensors) -> Tensors:
    """Run one plan from raw inputs to finished outputs; for examples and tests."""
    run = PlanRun(model)
    return next(given for path, given in run.outputs(raw, [plan]) if path == plan)
