"""The interface of a served model: one callable per segment and choice, all sharing weights.

Around it: how a device runs a model, errors in users' code with their file and line, tensors for a spec, and
`PlanRun`, which runs whole plans in one process.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec
import torch
from msgspec import Struct
from torch import Tensor, nn

from slimsched.core.config import ConfigError, DataError, SlimError, convert, read_toml
from slimsched.models.spec import NUMPY, ModelFigures, ModelSpec, Step, random_arrays
from slimsched.models.spec import Path as Plan

# -- How a model runs on a kind of device: precision, memory format, compiled or not (see `slim model tune`).
#
# A model folder keeps them in run.toml:
#
#     [cpu]
#     precision = "bfloat16"
#     channels_last = true

RUN = "run.toml"
Precision = Literal["float32", "bfloat16", "float16"]
PRECISIONS: dict[str, Precision] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""The short names that users write."""
Kind = Literal["cpu", "cuda"]


class RunOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults leave the model as its own code makes it."""

    precision: Precision = "float32"
    channels_last: bool = False
    compile: bool = False

    def __str__(self) -> str:
        words = [self.precision, *(["channels_last"] if self.channels_last else [])]
        return ", ".join([*words, *(["compiled"] if self.compile else [])])


AS_IS = RunOptions()


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cpu: RunOptions = AS_IS
    cuda: RunOptions = AS_IS


def read_run_options(folder: Path, kind: str) -> RunOptions:
    """Read how the model of a folder runs on this kind of device."""
    return getattr(_read(folder), kind)  # type: ignore[no-any-return]


def write_run_options(folder: Path, kind: Kind, options: RunOptions) -> None:
    """Write what `slim model tune` chose; options of the other kind stay as they are."""
    file = msgspec.structs.replace(_read(folder), **{kind: options})
    lines = ["# How this model runs fastest with the same answers; written by slim model tune."]
    for name in ("cpu", "cuda"):
        chosen: RunOptions = getattr(file, name)
        lines += ["", f"[{name}]", f'precision = "{chosen.precision}"']
        lines += [f"channels_last = {str(chosen.channels_last).lower()}"]
        lines += [f"compile = {str(chosen.compile).lower()}"]
    (folder / RUN).write_text("\n".join(lines) + "\n")


def _read(folder: Path) -> _File:
    path = folder / RUN
    if not path.is_file():
        return _File()
    try:
        return convert(read_toml(path), _File, path.name)
    except (OSError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}; write it again with slim model tune {folder}") from None


# -- Chooses the device that a network runs on.


def pick_device(name: str) -> torch.device:
    """Return the named device; 'auto' is CUDA if there is a CUDA device, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DataError(f"unknown device '{name}'; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DataError("there is no CUDA device here; use --device cpu")
    return device


# -- Errors in a user's model, with the file and line of the user's code if known.

LIBRARIES = ("site-packages", "dist-packages")
OWN = str(Path(__file__).parents[1])


class ModelError(SlimError):
    """A model that cannot be loaded or run; `remedy` says what to change."""

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what, self.remedy = what, remedy


@contextmanager
def users_code(doing: str, *, remedy: str = "") -> Iterator[None]:
    """Turn any exception of the user's code into a ModelError that names the file and the line."""
    try:
        yield
    except SlimError:
        raise
    except Exception as error:
        raise _fault(error, doing, remedy) from error


def _fault(error: Exception, doing: str, remedy: str) -> ModelError:
    text = " ".join(str(error).split()) or "no message"
    if len(text) > 300:
        text = f"{text[:300]}…"
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return ModelError(
            f"{doing}: {error.filename}, line {error.lineno}: {error.msg}",
            remedy=remedy or "correct the line",
        )
    place = _place(error)
    where = f"{place[0]}, line {place[1]}: " if place else ""
    return ModelError(f"{doing}: {where}{kind}: {text}", remedy=remedy or "correct that line and try again")


def _place(error: Exception) -> tuple[str, int] | None:
    """Return the innermost line of the user's own code; if there is none, the innermost line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [
        frame
        for frame in frames
        if not frame.filename.startswith((OWN, "<"))
        and not any(library in frame.filename for library in LIBRARIES)
        and "/lib/python" not in frame.filename
    ]
    chosen = users[-1] if users else (frames[-1] if frames else None)
    return None if chosen is None else (chosen.filename, chosen.lineno or 0)


Tensors = tuple[Tensor, ...]
"""Tensors of one batch, each with the batch dimension first. Inputs and outputs come in the spec's order."""

Segment = Callable[[Tensors], Tensors]
"""One segment at one choice. It keeps no state between calls, so several can run at once."""


class ElasticModel:
    """A model that can run narrower, shallower or smaller.

    Subclasses set `spec` and write `segment`; the other methods may stay as they are. A request passes
    `prepare`, then the segments of its plan, then `finish`. All run in the server's process.
    """

    spec: ModelSpec

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Return one segment at one choice, ready to run; `previous` is the choice of the segment before.

        The callable must not depend on anything that another choice changes: two choices run at once.
        """
        raise TypeError(f"{type(self).__name__} must define segment(index, choice, previous)")

    def prepare(self, raw: Tensors) -> Tensors:
        """Turn what clients send into what the first segment takes: resize, normalize, change type."""
        return raw

    def finish(self, last: Tensors) -> Tensors:
        """Turn what a plan's last segment gives into the outputs that clients see."""
        return last

    def confidence(self, last: Tensors) -> Tensor | None:
        """Say how sure each answer is, by what a plan's last segment gives: one number per row.

        A higher number means that the answer is more likely right; the scale is free. With it, the server
        can stop when it is sure and go on with a wider plan when it is not. None, the default, means that
        the model cannot say. Segments of a model that can must not change their inputs in place.
        """
        return None

    def place(self, device: torch.device) -> None:
        """Move the weights to a device. A server calls this once, before it asks for segments."""
        for module in self.modules():
            module.eval().to(device)

    def modules(self) -> list[nn.Module]:
        """List the PyTorch modules that hold the weights; by default those among the attributes."""
        return [value for value in vars(self).values() if isinstance(value, nn.Module)]

    def weights(self) -> dict[str, Tensor]:
        """Name every tensor that `weights.safetensors` holds; loading copies into these very tensors.

        With one module these are the names of its state_dict; with several, attribute names come first.
        """
        named = {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}
        if len(named) == 1:
            return dict(next(iter(named.values())).state_dict())
        return named_weights(named)

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the uncut model at a plan, for `slim model check` to compare with; None if there is none."""
        return None

    def examples(self, count: int) -> Tensors | None:
        """Return typical inputs for dry runs; None means random inputs."""
        return None

    def figures(self) -> ModelFigures | None:
        """Return the model's figures by formula; None lets `slim model check` measure them."""
        return None

    @property
    def is_confident(self) -> bool:
        """Whether the model says how sure it is."""
        return type(self).confidence is not ElasticModel.confidence


def named_weights(modules: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """Name the tensors of several modules, each with its module's name in front."""
    return {
        f"{name}.{key}": tensor
        for name, module in modules.items()
        for key, tensor in module.state_dict().items()
    }


def margin(logits: Tensor) -> Tensor:
    """Return the margin between the two most likely classes, (N, classes) -> (N,): a good confidence."""
    best = logits.float().softmax(dim=1).topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


# -- Tensors for a spec: torch types by protocol name, and random inputs.

DTYPES: dict[str, torch.dtype] = {
    name: torch.bool if kind.kind == "b" else getattr(torch, kind.name) for name, kind in NUMPY.items()
}


def random_inputs(spec: ModelSpec, count: int, *, seed: int = 0) -> Tensors:
    """Draw random inputs as tensors."""
    return tuple(torch.from_numpy(array) for array in random_arrays(spec, count, seed=seed))


def example_inputs(model: ElasticModel, count: int, *, seed: int = 0) -> Tensors:
    """Take the model's own examples if it has any, else random inputs."""
    return model.examples(count) or random_inputs(model.spec, count, seed=seed)


def shape_text(tensors: Tensors) -> str:
    """Write shapes without the batch dimension, such as '(N, 16, 8, 8) float32'."""
    return ", ".join(
        f"({', '.join(['N', *map(str, one.shape[1:])])}) {str(one.dtype).removeprefix('torch.')}"
        for one in tensors
    )


# -- Runs a model's plans in one process. Plans with equal beginnings share that work.

Arrived = tuple[Plan, Tensors]
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

    def step(self, path: Plan, tensors: Tensors) -> Tensors:
        """Run the last step of a path on the output of the step before."""
        segment, where = self.segment(self.spec.step(path)), step_text(self.spec, path)
        with users_code(where):
            return as_tensors(segment(tensors), where)

    def every_path(
        self,
        prepared: Tensors,
        plans: Iterable[Plan],
        *,
        failed: Callable[[Plan, ModelError], None] | None = None,
    ) -> Iterator[Arrived]:
        """Run all plans depth first and yield the output of every path, including complete plans.

        With `failed`, a path that raises is reported, and longer paths that begin with it are skipped.
        """
        yield from self._descend((), prepared, sorted(set(plans)), failed)

    def outputs(self, raw: Tensors, plans: Sequence[Plan]) -> Iterator[Arrived]:
        """Run plans from raw inputs to finished outputs."""
        wanted = set(plans)
        for path, tensors in self.every_path(self.prepare(raw), plans):
            if path in wanted:
                yield path, self.finish(tensors)

    def _descend(
        self,
        path: Plan,
        tensors: Tensors,
        plans: list[Plan],
        failed: Callable[[Plan, ModelError], None] | None,
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


def step_text(spec: ModelSpec, path: Plan) -> str:
    """Describe the last step of a path in words."""
    number, names = len(path) - 1, spec.segments
    came = f" after '{names[number - 1][path[-2]]}'" if number else ""
    return f"model '{spec.name}', segment {number} at '{names[number][path[-1]]}'{came}"
