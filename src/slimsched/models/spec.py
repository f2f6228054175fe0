"""The description of an elastic model: its tensors, segments, choices and plans, and what each step costs.

A model is a chain of one to eight *segments*. Each segment can run in several ways, its *choices*: widths,
depths, exits, or unrelated models. Choices are ordered names, narrowest first. A *plan* names one choice per
segment and is one complete way through the model; a plan may end before the last segment.

Inside the scheduler a choice is its position in its segment, and a plan is a tuple of positions, a `Path`.
Names appear where people read and write. A model's plans form a tree: each beginning of a plan is a node, and
each plan a leaf. Figures say what each step computes, moves and weighs. Nothing here needs torch, so that
routing can use it.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import product, takewhile
from math import prod
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import ConfigError, Index, SlimError

# -- The names of the models that come with the package, and of the one to use where none is named.

SLIMRESNET, SLIMVIT = "slimresnet", "slimvit"
SHIPPED_MODELS = (SLIMRESNET, SLIMVIT)
DEFAULT_MODEL = SLIMRESNET


# -- NumPy types of tensor elements; bytes on the wire are little-endian.

NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "UINT8": np.dtype("u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}


Path = tuple[int, ...]
"""Choices by position, one per segment, from the first segment on; a plan, or the beginning of one."""

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64"
]
"""Types of tensor elements, as the Open Inference Protocol names them."""

Step = tuple[Index, Index, Index]
"""(segment, choice, previous choice): one segment run in one way."""

START, ANY = -1, -2
"""Stand-ins for a previous choice: START for the first segment, ANY if the model ignores previous choices."""

MOST_SEGMENTS = 8
MOST_PLANS = 1024
MOST_ROW_BYTES = 1 << 30


class PlanError(SlimError):
    """A plan, or a choice in it, that the model does not have."""


class TensorSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input or output: its name, element type and shape, without the batch dimension in front."""

    name: str
    datatype: Datatype
    shape: tuple[Index, ...]

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.shape):
            raise ConfigError(
                f"tensor '{self.name}' has shape {list(self.shape)}: give every size, 1 or more, "
                "without the batch dimension"
            )
        if self.row_bytes > MOST_ROW_BYTES:
            raise ConfigError(
                f"tensor '{self.name}' has shape {list(self.shape)}: {self.row_bytes:,} bytes per example; "
                f"at most {MOST_ROW_BYTES:,} are possible"
            )

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, that is, one example."""
        return prod(self.shape) * NUMPY[self.datatype].itemsize


class ModelSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The description of an elastic model that the rest of the system uses.

    `segments` holds the names of each segment's choices, narrowest first. `plans` holds every path that may
    run. `follows_previous` says that a segment's cost depends on the choice before it, because the shape of
    its input does. `nested` says that a loaded choice contains the narrower ones of its segment, so that
    it can stand in for them.
    """

    name: str
    version: str = "1"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    segments: tuple[tuple[str, ...], ...]
    plans: tuple[Path, ...]
    follows_previous: bool = False
    nested: bool = False
    labels: tuple[str, ...] = ()
    description: str = ""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def row_bytes(self) -> int:
        """Bytes of one example's inputs."""
        return sum(tensor.row_bytes for tensor in self.inputs)

    @property
    def answer_bytes(self) -> int:
        """Bytes of one example's outputs."""
        return sum(tensor.row_bytes for tensor in self.outputs)

    @property
    def widest(self) -> Path:
        """The plan with the last choice in every segment, as far as plans allow."""
        return max(self.plans)

    @property
    def narrowest(self) -> Path:
        """The plan with the first choice in every segment, as far as plans allow."""
        return min(self.plans)

    def step(self, path: Path) -> Step:
        """Return the last step of a path."""
        if not self.follows_previous:
            return len(path) - 1, path[-1], ANY
        return len(path) - 1, path[-1], path[-2] if len(path) > 1 else START

    def ends(self, segment: int, choice: int) -> bool:
        """Whether a plan is complete once this segment has run at this choice."""
        return (segment, choice) in _endings(self.plans)

    def previous(self, path: Path) -> int:
        """Return the `previous` part of the step that follows this path."""
        if not self.follows_previous:
            return ANY
        return path[-1] if path else START

    def steps(self) -> list[Step]:
        """List every step that some plan takes, by segment, then previous choice, then choice."""
        steps = {self.step(plan[:length]) for plan in self.plans for length in range(1, len(plan) + 1)}
        return sorted(steps, key=lambda step: (step[0], step[2], step[1]))

    def places(self) -> list[tuple[int, int]]:
        """List every (segment, choice) that some plan uses."""
        return sorted({(segment, choice) for segment, choice, _ in self.steps()})

    def path(self, text: str) -> Path:
        """Read a plan: '0.25,0.5,0.75,1.0' names one choice per segment, '0.5' the same one everywhere."""
        names = [name.strip() for name in text.split(",")]
        if len(names) == 1:
            return self._uniform(names[0])
        plan = tuple(self.choice(segment, name) for segment, name in enumerate(names[: len(self.segments)]))
        if len(names) > len(self.segments) or plan not in self.plans:
            raise PlanError(
                f"'{text}' is not a plan of model '{self.name}': it has {len(self.segments)} segments and "
                f"{len(self.plans)} plans, such as {self.text(self.widest)}"
            )
        return plan

    def text(self, path: Path) -> str:
        """Write a plan, or its beginning, the way `path` reads it."""
        return ",".join(self.names(path))

    def names(self, path: Path) -> tuple[str, ...]:
        """Return the names of a path's choices."""
        return tuple(self.segments[segment][choice] for segment, choice in enumerate(path))

    def choice(self, segment: int, name: str) -> int:
        """Find a choice of a segment by its name; '1' also finds '1.0'."""
        choices = self.segments[segment]
        if name in choices:
            return choices.index(name)
        for position, known in enumerate(choices):
            if _same_number(name, known):
                return position
        raise PlanError(
            f"'{name}' is not a choice of segment {segment} of model '{self.name}'; "
            f"it has {', '.join(choices)}"
        )

    def _uniform(self, name: str) -> Path:
        for plan in self.plans:
            if all(name == known or _same_number(name, known) for known in self.names(plan)):
                return plan
        uniform = [set(self.names(plan)) for plan in self.plans]
        known = ", ".join(names.pop() for names in uniform if len(names) == 1) or self.text(self.widest)
        raise PlanError(
            f"'{name}' is not available: model '{self.name}' runs at {known}; ask for one of these"
        )


def every_plan(segments: Sequence[Sequence[str]]) -> tuple[Path, ...]:
    """List all combinations of choices; the first segment varies slowest."""
    return tuple(product(*(range(len(choices)) for choices in segments)))


def uniform_plans(segments: Sequence[Sequence[str]]) -> tuple[Path, ...]:
    """List the plans that take the choice at the same position in every segment."""
    return tuple((choice,) * len(segments) for choice in range(min(map(len, segments))))


def common_start(one: Path, other: Path) -> int:
    """Return how many first choices two paths have in common."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _same_number(one: str, other: str) -> bool:
    return isinstance(_number(one), float) and _number(one) == _number(other)


def _number(name: str) -> float | str:
    """The number that a name is, or the name itself."""
    try:
        return float(name)
    except ValueError:
        return name


def _check(spec: ModelSpec) -> None:
    """Raise ConfigError, naming the part of the spec that is wrong."""
    where = f"model '{spec.name}'"
    if not spec.name or "/" in spec.name:
        raise ConfigError(f"{where}: give the model a name without '/'")
    if not spec.inputs or not spec.outputs:
        raise ConfigError(f"{where}: name at least one input and one output tensor")
    if not 1 <= len(spec.segments) <= MOST_SEGMENTS:
        raise ConfigError(f"{where} has {len(spec.segments)} segments; it may have 1 to {MOST_SEGMENTS}")
    for number, choices in enumerate(spec.segments):
        if not choices or len(set(choices)) != len(choices):
            raise ConfigError(f"{where}, segment {number}: choices {list(choices)} must be different names")
        if len({_number(name) for name in choices}) != len(choices):
            raise ConfigError(f"{where}, segment {number}: two of the choices {list(choices)} are one number")
        if any("," in name or not name or name != name.strip() for name in choices):
            raise ConfigError(
                f"{where}, segment {number}: a choice's name must not be empty, hold a comma or "
                "begin or end with a space"
            )
    if not 1 <= len(spec.plans) <= MOST_PLANS:
        raise ConfigError(f"{where} has {len(spec.plans)} plans; write out 1 to {MOST_PLANS} of them")
    _check_plans(where, spec.segments, spec.plans)


@lru_cache(maxsize=256)
def _endings(plans: tuple[Path, ...]) -> frozenset[tuple[int, int]]:
    """Return every (segment, choice) that some plan ends with."""
    return frozenset((len(plan) - 1, plan[-1]) for plan in plans)


def _check_plans(where: str, segments: tuple[tuple[str, ...], ...], plans: tuple[Path, ...]) -> None:
    known: set[Path] = set()
    for plan in plans:
        if not 1 <= len(plan) <= len(segments):
            raise ConfigError(f"{where}: plan {list(plan)} must name 1 to {len(segments)} choices")
        for number, choice in enumerate(plan):
            if not 0 <= choice < len(segments[number]):
                raise ConfigError(f"{where}: plan {list(plan)}: segment {number} has no choice {choice}")
        if plan in known:
            raise ConfigError(f"{where}: plan {list(plan)} stands there twice")
        known.add(plan)
    endings = _endings(plans)
    for plan in known:
        for segment, choice in enumerate(plan[:-1]):
            if (segment, choice) in endings:
                raise ConfigError(
                    f"{where}: choice {choice} of segment {segment} ends some plans, but plan {list(plan)} "
                    "goes on after it; let plans that end early end with a choice of their own"
                )


# -- The plans of a model as a tree: each beginning of a plan is a node, each plan is a leaf.

Rows = NDArray[np.int64]


class PlanTree:
    """Nodes by row, shorter paths first, so that tables over paths are plain arrays.

    Row 0 is the empty path. `children[row]` holds the rows one choice further, and `choices[row]` the
    choices that lead there.
    """

    def __init__(self, plans: Sequence[Path]) -> None:
        self.plans = tuple(plans)
        self.index = {plan: number for number, plan in enumerate(self.plans)}
        """The number of each plan."""
        paths = {plan[:length] for plan in self.plans for length in range(len(plan) + 1)}
        self.paths = sorted(paths, key=lambda path: (len(path), path))
        self.row = {path: row for row, path in enumerate(self.paths)}
        """The row of each path."""
        children: list[list[int]] = [[] for _ in self.paths]
        for path, row in self.row.items():
            if path:
                children[self.row[path[:-1]]].append(row)
        self.children: list[Rows] = [np.array(rows, dtype=np.int64) for rows in children]
        self.choices: list[Rows] = [
            np.array([self.paths[row][-1] for row in rows], dtype=np.int64) for rows in children
        ]
        self.after = {
            path: tuple(int(choice) for choice in self.choices[row]) for path, row in self.row.items()
        }
        """The choices that may follow each path; none after a plan."""
        self.kind = _kinds(self.plans, self.paths)
        """Paths of one kind have the same number and can go on in the same ways."""
        self.leaves: Rows = np.array([self.row[plan] for plan in self.plans], dtype=np.int64)
        """The row of each plan, in the order of plans."""
        self.depth = max(map(len, self.plans))
        self.levels = [self._level(length, children) for length in range(self.depth)]
        """For each length: the rows that have children, and a table of those children, padded with -1."""

    def __len__(self) -> int:
        return len(self.paths)

    def is_plan(self, path: Path) -> bool:
        """Whether a path is complete."""
        return path in self.index

    def complete(self, path: Path, *, widest: bool) -> Path:
        """Complete a path to a plan, taking the last choice each time, or the first."""
        row = self.row[path]
        while len(self.children[row]):
            row = int(self.children[row][-1 if widest else 0])
        return self.paths[row]

    def stay(self, path: Path) -> Path:
        """Complete a path to a plan, repeating its last choice, or the nearest available one."""
        row = self.row[path]
        while len(choices := self.choices[row]):
            nearest = int(np.abs(choices - self.paths[row][-1]).argmin())
            row = int(self.children[row][nearest])
        return self.paths[row]

    @property
    def middle(self) -> Path:
        """The plan that keeps the middle choice of the first segment."""
        return self.stay((int(self.choices[0][(len(self.choices[0]) - 1) // 2]),))

    def _level(self, length: int, children: list[list[int]]) -> tuple[Rows, Rows]:
        rows = [row for path, row in self.row.items() if len(path) == length and children[row]]
        most = max((len(children[row]) for row in rows), default=0)
        table = np.full((len(rows), most), -1, dtype=np.int64)
        for position, row in enumerate(rows):
            table[position, : len(children[row])] = children[row]
        return np.array(rows, dtype=np.int64), table


def _kinds(plans: Sequence[Path], paths: Sequence[Path]) -> dict[Path, int]:
    """Number the ways in which paths can go on."""
    ways: dict[Path, set[Path]] = {path: set() for path in paths}
    for plan in plans:
        for length in range(len(plan) + 1):
            ways[plan[:length]].add(plan[length:])
    numbers: dict[tuple[int, frozenset[Path]], int] = {}
    return {
        path: numbers.setdefault((len(path), frozenset(rest)), len(numbers)) for path, rest in ways.items()
    }


# -- The figures of a model: arithmetic, memory traffic, weights and activations.
#
# `slim model check` measures them in a dry run; SlimResNet and SlimViT compute them by formula. Simulated
# devices and links need them; routing does not.

Place = tuple[int, int]
"""(segment, choice)."""


class StepFigures(Struct, frozen=True, array_like=True):
    """Cost of one step per example: multiply-accumulates, and numbers read from or written to memory."""

    macs: int
    moved: int


class ModelFigures(Struct, frozen=True, kw_only=True):
    """The figures of all steps, and of each segment at each choice.

    `weights` counts parameters, `output` the numbers in a segment's output per example, `workspace` the
    numbers per example in memory at once while it runs.
    """

    steps: dict[Step, StepFigures]
    weights: dict[Place, int]
    output: dict[Place, int]
    workspace: dict[Place, int]

    def plan_macs(self, spec: ModelSpec, plan: Path) -> int:
        """Return the multiply-accumulates of one example through a plan."""
        return sum(self.steps[spec.step(plan[:length])].macs for length in range(1, len(plan) + 1))

    def plan_weights(self, plan: Path) -> int:
        """Return the parameters of all segments of a plan."""
        return sum(self.weights[place] for place in enumerate(plan))


# -- Random inputs for any model, for dry runs and for users who have no examples at hand.

GRIDS = (1, 4, 16)
"""Random pictures are sums of coloured squares: one for the whole picture, 4 × 4 and 16 × 16."""


def random_arrays(spec: ModelSpec, count: int, *, seed: int = 0) -> tuple[NDArray[Any], ...]:
    """Draw inputs: normal floats, pictures for bytes in three dimensions, other integers 0 or 1."""
    rng = np.random.default_rng(seed)
    return tuple(_random(tensor, count, rng) for tensor in spec.inputs)


def _random(tensor: TensorSpec, count: int, rng: np.random.Generator) -> NDArray[Any]:
    dtype, shape = NUMPY[tensor.datatype], (count, *tensor.shape)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    if tensor.datatype == "UINT8":
        return _pictures(shape, rng) if len(tensor.shape) == 3 else rng.integers(0, 256, shape, dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _pictures(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Make pictures that differ as wholes, as photographs do; noise alone looks the same to a network."""
    *outer, height, width = shape
    total = rng.integers(96, 161, shape, np.int16)
    for grid in GRIDS:
        squares = rng.integers(-48, 49, (*outer, grid, grid), np.int16)
        rows, columns = np.arange(height) * grid // height, np.arange(width) * grid // width
        total += squares[..., rows[:, None], columns]
    return total.clip(0, 255).astype(np.uint8)
