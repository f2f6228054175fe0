"""How good each plan's answers are: right or wrong by example, how sure the model is, what a wider plan adds.

Accuracy is the share of labelled examples answered correctly. A model without labels can use its agreement
with its own widest plan instead; `name` says which. Nothing here needs torch.

Who chooses by a table must not be scored on the examples that it was measured on. So `split` makes two tables
of one: routers choose by the even examples, and runs are scored on the odd ones.
"""

import zipfile
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any, BinaryIO, Literal, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.core.pareto import best_at_some_price, unbeaten
from slimsched.models.spec import Path, PlanTree

# -- How sure plans are: one level per plan and example, and whether the answer is the widest plan's.
#
# A model's confidence is a number that rises with the chance that the answer is right. Numbers of different
# plans cannot be compared, so each plan has its own levels: `LEVELS` of them, with an equal share of examples
# in each. Only plans that are worth stopping at have levels.

LEVELS = 16
"""Number of levels: four bits each."""

MOST_PLANS = 64
"""How many plans have levels at most; 64 of them on 10,000 examples take 400 kB."""


class Confidences:
    """Levels of some plans.

    `plans` holds their numbers. `edges` (plans, levels - 1) says at which confidence each level but the
    first begins. `levels` and `agrees` have one column per example.
    """

    def __init__(
        self,
        *,
        plans: Sequence[int],
        edges: NDArray[np.float64],
        levels: NDArray[np.uint8],
        agrees: NDArray[np.bool_],
    ) -> None:
        if not len(plans) == len(edges) == len(levels) == len(agrees) or levels.shape != agrees.shape:
            raise DataError(
                f"confidences of {len(plans)} plans have {len(edges)} rows of edges, levels {levels.shape} "
                f"and agreement {agrees.shape}; write them again with slim model evaluate"
            )
        self.plans = [int(plan) for plan in plans]
        self.row = {plan: row for row, plan in enumerate(self.plans)}
        """The row of each plan that has levels."""
        self.edges, self.levels, self.agrees = edges, levels, agrees
        self.examples = levels.shape[1]
        self._edges: list[list[float]] = edges.tolist()
        self._typical: list[list[float]] = _typical(edges).tolist()

    @classmethod
    def measured(
        cls,
        plans: Sequence[int],
        confidence: NDArray[np.floating[Any]],
        agrees: NDArray[np.bool_],
        among: NDArray[np.int64],
    ) -> Self:
        """Make levels from measured confidences (plans, examples); their edges come from some examples."""
        shares = np.arange(1, LEVELS) / LEVELS
        edges = np.quantile(confidence[:, among].astype(np.float64), shares, axis=1).T
        edges = edges.astype(np.float32).astype(np.float64)
        levels = np.array(
            [
                np.searchsorted(row, values, side="right")
                for row, values in zip(edges, confidence, strict=True)
            ],
            dtype=np.uint8,
        )
        return cls(plans=plans, edges=edges, levels=levels, agrees=agrees)

    def level(self, plan: int, confidence: float) -> int:
        """Return the level of a confidence; the plan must have levels."""
        return bisect_right(self._edges[self.row[plan]], confidence)

    def typical(self, plan: int, example: int) -> float:
        """Return a confidence that stands for the level of an example; 0 for a plan without levels."""
        row = self.row.get(plan)
        return 0.0 if row is None else self._typical[row][self.levels[row, example]]

    def top(self, plan: int, example: int) -> int:
        """Return 0 if the plan's answer is the widest plan's, else 1; -1 for a plan without levels."""
        row = self.row.get(plan)
        return -1 if row is None else int(not self.agrees[row, example])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what a quality file keeps."""
        pairs = np.pad(self.levels, ((0, 0), (0, self.levels.shape[1] % 2)))
        return {
            "sure_plans": np.array(self.plans, dtype=np.int16),
            "sure_edges": self.edges.astype(np.float32),
            "sure_levels": (pairs[:, ::2] << 4 | pairs[:, 1::2]).astype(np.uint8),
            "sure_agrees": np.packbits(self.agrees, axis=1),
        }


def read_confidences(arrays: Mapping[str, NDArray[Any]], examples: int, plans: int) -> Confidences | None:
    """Read what `Confidences.arrays` wrote; None if the file has none."""
    if "sure_levels" not in arrays:
        return None
    pairs, numbers = arrays["sure_levels"], arrays["sure_plans"].astype(np.int64)
    edges, bits = arrays["sure_edges"].astype(np.float64), arrays["sure_agrees"]
    wanted = (len(numbers), -(-examples // 2))
    if (
        pairs.dtype != np.uint8
        or pairs.shape != wanted
        or bits.dtype != np.uint8
        or bits.shape != (len(numbers), -(-examples // 8))
        or edges.shape != (len(numbers), LEVELS - 1)
        or not np.isfinite(edges).all()
        or not ((numbers >= 0) & (numbers < plans)).all()
        or len(set(numbers.tolist())) != len(numbers)
    ):
        raise ValueError(f"levels {pairs.shape} and edges {edges.shape} do not fit {wanted[0]} plans")
    levels = np.stack([pairs >> 4, pairs & 15], axis=2).reshape(len(numbers), -1)[:, :examples]
    agrees = np.unpackbits(bits, axis=1, count=examples).astype(bool)
    return Confidences(plans=numbers.tolist(), edges=edges, levels=levels.astype(np.uint8), agrees=agrees)


def _typical(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a confidence inside each level, by plan: the middle, or just beyond the outer edges."""
    first, last = edges[:, :1], edges[:, -1:]
    inner = (edges[:, :-1] + edges[:, 1:]) / 2
    below = first - np.maximum(1e-6, np.abs(first) / 2)
    typical: NDArray[np.float64] = np.hstack([below, inner, last + 1e-6])
    return typical.round(6)


# -- What a further plan is worth once a plan has answered with a certain confidence.
#
#     right[p, l, q] = P(plan q is right | plan p answered at level l)
#
# It is counted on examples, and smoothed. The own accuracy of p is a cubic in the level. What q adds to it is
# a · d + b · d², where d falls from 1 at the lowest level to 0 at the highest: an answer that p is sure of
# leaves nothing to gain. Counting alone would have a few hundred examples per level, and the best of many
# plans would look better than it is.

Values = NDArray[np.float64]

_AT = (np.arange(LEVELS) + 0.5) / LEVELS
OWN: Values = _AT[:, None] ** np.arange(4)
"""The curves of which a plan's own accuracy is made, by level."""

GAIN: Values = (1.0 - _AT)[:, None] ** np.array([1, 2])
"""The curves of which another plan's gain is made, by level."""


class EscalationTable:
    """Rows are the plans that have levels; columns are all plans.

    `share[p, l]` is the share of examples at each level, `agreed[p, l]` how often the answer is that of the
    widest plan, and `kept[p, q]` how many segments the two plans have in common at the start.
    """

    def __init__(
        self,
        plans: Sequence[Path],
        confidences: Confidences,
        right: NDArray[np.bool_],
        among: NDArray[np.int64],
    ) -> None:
        levels = confidences.levels[:, among]
        self.plans, self.row = confidences.plans, confidences.row
        self.confidences = confidences
        self._levels = levels
        self._usual: dict[tuple[int, int], Values] = {}
        known = right[:, among].astype(np.float64)
        agrees = confidences.agrees[:, among].astype(np.float64)
        self.share = np.zeros((len(self.plans), LEVELS))
        self.agreed = np.zeros((len(self.plans), LEVELS))
        self.right = np.zeros((len(self.plans), LEVELS, len(plans)))
        for row, level in enumerate(levels):
            counts = np.bincount(level, minlength=LEVELS).astype(np.float64)
            self.share[row] = counts / counts.sum()
            own = known[self.plans[row]]
            alone = np.stack([own, agrees[row]])
            fitted = _smooth(OWN, level, counts, alone)
            self.agreed[row] = np.clip(fitted[:, 1], 0.0, 1.0)
            gain = _smooth(GAIN, level, counts, known - own)
            self.right[row] = np.clip(fitted[:, :1] + gain, 0.0, 1.0)
            worse = known.mean(axis=1) <= own.mean()  # on the whole: such a plan is no help
            worse[self.plans[row]] = False
            self.right[row][:, worse] = 0.0
        self.kept = np.array(
            [[_common(plans[one], other) for other in plans] for one in self.plans], dtype=np.int64
        ).reshape(len(self.plans), len(plans))

    def usual(self, plan: int, level: int, after: int) -> float:
        """Return what plan `after` says about its answers in the mean, where `plan` answered at a level.

        Examples at a low level are hard, so `after` is less sure of them than of others, and still too sure.
        """
        known = self._usual.get((plan, after))
        if known is None:
            levels, said = self._levels[self.row[plan]], self.right[self.row[after], :, after]
            sums = np.bincount(levels, weights=said[self._levels[self.row[after]]], minlength=LEVELS)
            known = self._usual[plan, after] = sums / np.maximum(np.bincount(levels, minlength=LEVELS), 1)
        return float(known[level])

    def sure(self, plan: int, level: int) -> float:
        """Return the chance that a plan's answer at this level is right."""
        return float(self.right[self.row[plan], level, plan])


def _smooth(curves: Values, level: NDArray[np.uint8], counts: Values, values: Values) -> Values:
    """Fit the curves to values (columns, examples) by least squares; return the fit (levels, columns)."""
    sums = np.stack([np.bincount(level, weights=row, minlength=LEVELS) for row in values], axis=1)
    gram = curves.T @ (counts[:, None] * curves) + 1e-9 * np.eye(curves.shape[1])
    fitted: Values = curves @ np.linalg.solve(gram, curves.T @ sums)
    return fitted


def _common(one: Path, other: Path) -> int:
    """Return how many first choices two plans have in common."""
    differ = (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other)))


Fill = Literal["nearest", "additive"]


class QualityTable:
    """Accuracy in [0, 1] of every plan.

    `measured` says which plans were measured; the others were filled in from their neighbours.
    `correct` holds, when known, one bit for each plan and example (packed along the examples). `among` are
    the examples that the accuracy was measured on, all of them if None.
    """

    def __init__(
        self,
        tree: PlanTree,
        *,
        name: str,
        accuracy: NDArray[np.float64],
        measured: NDArray[np.bool_] | None = None,
        correct: NDArray[np.uint8] | None = None,
        examples: int = 0,
        among: NDArray[np.int64] | None = None,
        confidences: Confidences | None = None,
    ) -> None:
        plans = len(tree.plans)
        if accuracy.shape != (plans,) or not ((accuracy >= 0) & (accuracy <= 1)).all():
            raise DataError(
                f"quality table '{name}': the model has {plans} plans, so {plans} values in [0, 1] are "
                f"needed; got shape {accuracy.shape}"
            )
        self.tree = tree
        self.name = name
        self.by_plan = accuracy
        self.measured = np.ones(plans, dtype=bool) if measured is None else measured
        self.examples = examples
        self.among = np.arange(examples) if among is None else among
        """The numbers of the examples that the accuracy was measured on."""
        self.confidences = confidences
        self._correct = correct
        self._list: list[float] = accuracy.tolist()
        self._best, self._mean = _by_path(tree, accuracy)

    @property
    def is_measured(self) -> bool:
        """Whether any plan was measured; else the table only assumes something."""
        return bool(self.measured.any())

    @classmethod
    def from_bits(
        cls,
        tree: PlanTree,
        *,
        name: str,
        correct: NDArray[np.uint8],
        examples: int,
        among: NDArray[np.int64] | None = None,
        confidences: Confidences | None = None,
    ) -> Self:
        """Build the table from bits (plans, ceil(examples / 8)); accuracy is the mean of those `among`."""
        wanted = (len(tree.plans), -(-examples // 8))
        if correct.dtype != np.uint8 or correct.shape != wanted:
            raise DataError(
                f"quality table '{name}': expected uint8 {wanted} for {wanted[0]} plans and {examples} "
                f"examples, got {correct.dtype} {correct.shape}; write it again with slim model evaluate"
            )
        right = np.unpackbits(correct, axis=1, count=examples)
        return cls(
            tree,
            name=name,
            accuracy=(right if among is None else right[:, among]).mean(axis=1, dtype=np.float64),
            correct=correct,
            examples=examples,
            among=among,
            confidences=confidences,
        )

    @classmethod
    def from_points(
        cls, tree: PlanTree, *, name: str, points: Mapping[Path, float], fill: Fill = "nearest"
    ) -> Self:
        """Build the table from a few measured plans.

        The others take the value of their nearest neighbour. With `fill="additive"` they take the value of a
        formula fitted to the points, in which a wider segment never adds less accuracy.
        """
        if not points:
            raise DataError(f"quality table '{name}' has no points; give at least one plan")
        known = {tree.index[path]: value for path, value in points.items()}
        accuracy = _additive(tree, known) if fill == "additive" else _nearest(tree, known)
        for index, value in known.items():
            accuracy[index] = value
        return cls(
            tree, name=name, accuracy=accuracy, measured=np.isin(np.arange(len(tree.plans)), list(known))
        )

    def split(self) -> "tuple[QualityTable, QualityTable]":
        """Return the table to choose by and the table to score by, each from half of the examples.

        A table without examples, or one that is a half already, is both.
        """
        if self._correct is None or self.examples < 2 or len(self.among) < self.examples:
            return self, self
        return self.of(choosing_half(self.examples)), self.of(np.arange(1, self.examples, 2))

    @cached_property
    def escalation(self) -> EscalationTable | None:
        """What further plans are worth after an answer; None if confidences were not measured."""
        if self.confidences is None or self._correct is None:
            return None
        right = np.unpackbits(self._correct, axis=1, count=self.examples).astype(bool)
        return EscalationTable(self.tree.plans, self.confidences, right, self.among)

    def of(self, among: NDArray[np.int64]) -> "QualityTable":
        """Return the same table measured on some of the examples only."""
        assert self._correct is not None
        return QualityTable.from_bits(
            self.tree,
            name=self.name,
            correct=self._correct,
            examples=self.examples,
            among=among,
            confidences=self.confidences,
        )

    def accuracy(self, plan: Path) -> float:
        """Look up the accuracy of a complete plan."""
        return self._list[self.tree.index[plan]]

    def best_reachable(self, path: Path) -> float:
        """Return the best accuracy that is still possible after these choices."""
        return self._best[path]

    def expected(self, path: Path) -> float:
        """Return the mean accuracy over all plans that begin with these choices."""
        return self._mean[path]

    def hits(self, plans: NDArray[np.int64], examples: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return whether each plan answered its example correctly; None if examples were not measured."""
        if self._correct is None or not ((examples >= 0) & (examples < self.examples)).all():
            return None
        bits: NDArray[np.bool_] = (self._correct[plans, examples >> 3] >> (7 - (examples & 7)) & 1).astype(
            bool
        )
        return bits

    def is_correct(self, plan: Path, example: int) -> bool | None:
        """Return whether this plan answers this example correctly; None if not measured."""
        hit = self.hits(np.array([self.tree.index[plan]]), np.array([example]))
        return None if hit is None else bool(hit[0])


def choosing_half(examples: int) -> NDArray[np.int64]:
    """Return the numbers of the examples that routers choose by."""
    return np.arange(0, examples, 2)


def write_quality(
    path: FilePath | BinaryIO,
    correct: NDArray[np.bool_],
    *,
    name: str = "",
    texts: Sequence[str] = (),
    confidences: Confidences | None = None,
) -> None:
    """Store rows in the order of the plans, columns in the order of the examples.

    `name` says what was measured; `texts` are the plans in words, so that reading can compare them.
    """
    bits = np.packbits(correct, axis=1)
    about = {"name": np.array(name)} if name else {}
    if texts:
        about["plans"] = np.array(texts)
    if confidences is not None:
        about |= confidences.arrays()
    np.savez_compressed(path, allow_pickle=False, correct=bits, images=np.array(correct.shape[1]), **about)


def read_quality(path: FilePath, tree: PlanTree, *, texts: Sequence[str] = ()) -> QualityTable:
    """Read a table from a file of bits or of accuracies by plan."""
    try:
        with np.load(path, allow_pickle=False) as file:
            name = str(file["name"]) if "name" in file.files else path.stem
            plans = [str(text) for text in file["plans"]] if "plans" in file.files else []
            if texts and plans and plans != list(texts):
                raise DataError(
                    f"{path} was measured with other plans: it has {len(plans)}, such as {plans[-1]}, the "
                    f"model has {len(texts)}, such as {texts[-1]}; write it again with slim model evaluate"
                )
            if "accuracy" in file.files:
                return QualityTable(tree, name=name, accuracy=file["accuracy"].astype(np.float64))
            correct, examples = file["correct"], int(file["images"])
            confidences = read_confidences(file, examples, len(tree.plans))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is no quality table ({error}); write one with slim model evaluate") from None
    return QualityTable.from_bits(
        tree, name=name, correct=correct, examples=examples, confidences=confidences
    )


def _by_path(tree: PlanTree, accuracy: NDArray[np.float64]) -> tuple[dict[Path, float], dict[Path, float]]:
    """Return best and mean accuracy over the plans that begin with each path, including the empty path."""
    below: dict[Path, list[float]] = {path: [] for path in tree.paths}
    for plan, value in zip(tree.plans, accuracy.tolist(), strict=True):
        for length in range(len(plan) + 1):
            below[plan[:length]].append(value)
    best = {path: max(values) for path, values in below.items()}
    mean = {path: float(np.mean(values)) for path, values in below.items()}
    return best, mean


def _grid(plans: Sequence[Path]) -> NDArray[np.int64]:
    """Write plans as rows of equal length, with -1 for segments that a plan does not reach."""
    depth = max(map(len, plans))
    return np.array([(*plan, *[-1] * (depth - len(plan))) for plan in plans])


def _nearest(tree: PlanTree, known: Mapping[int, float]) -> NDArray[np.float64]:
    """Give each plan the accuracy of its nearest known plan (by sum of differences); ties take the best."""
    grid, rows = _grid(tree.plans), sorted(known, key=lambda index: -known[index])
    distance = np.abs(grid[:, None, :] - grid[None, rows, :]).sum(axis=2)  # (plans, points)
    return np.array([known[rows[column]] for column in distance.argmin(axis=1)])


def _additive(tree: PlanTree, known: Mapping[int, float]) -> NDArray[np.float64]:
    """acc(p) = a + Σ_s Σ_j d[s, j] · (p_s ≥ j), d ≥ 0: least squares with a light pull towards small d."""
    from scipy.optimize import nnls  # imported here because it takes long

    grid = _grid(tree.plans)
    steps = (grid[:, :, None] >= np.arange(1, grid.max() + 1)).reshape(len(grid), -1).astype(float)
    rows = np.hstack([np.ones((len(steps), 1)), steps])
    pull = 1e-2 * np.eye(rows.shape[1])[1:]
    left = np.vstack([rows[list(known)], pull])
    right = np.concatenate([list(known.values()), np.zeros(len(pull))])
    weights, _ = nnls(left, right)
    return np.clip(rows @ weights, 0.0, 1.0)


# -- What an evaluation measures: which answers are right, what they are, and how sure the model is of them.


class MeasuredAnswers(Struct, frozen=True, kw_only=True):
    """One row per plan, one column per example.

    `answers` are the classes that were named. `confidence` is None if the model does not say how sure it is.
    """

    correct: NDArray[np.bool_]
    answers: NDArray[np.int32]
    confidence: NDArray[np.float32] | None = None

    def confidences(self, widest: int, costs: Sequence[float]) -> Confidences | None:
        """Return the levels of the plans that are worth stopping at; None if the model is never sure.

        `widest` is the number of the widest plan, `costs` is what each plan costs.
        """
        if self.confidence is None:
            return None
        plans = worth_stopping(self.correct.mean(axis=1), np.asarray(costs, dtype=np.float64), widest)
        agrees = self.answers[plans] == self.answers[widest]
        return Confidences.measured(
            plans, self.confidence[plans], agrees, choosing_half(self.correct.shape[1])
        )


def worth_stopping(
    accuracy: NDArray[np.float64], costs: NDArray[np.float64], widest: int, most: int = MOST_PLANS
) -> list[int]:
    """Return the plans nearest to the best mixtures of plans at their cost, and always the widest."""
    best = best_at_some_price(costs, accuracy)
    missing = np.interp(costs, costs[best], accuracy[best]) - accuracy
    missing[widest] = -np.inf
    return sorted(int(plan) for plan in missing.argsort(kind="stable")[:most])


# -- The plans worth running: no other plan is at least as accurate for the same or a lower cost.
#
# Costs are arithmetic, device time or energy; plans of several models may compete. A plot has one panel per
# cost.


class FrontPoint(Struct, frozen=True, kw_only=True):
    """A plan of a model with one of its costs."""

    model: str
    plan: str
    cost: float
    accuracy_percent: float


class CostFront(Struct, frozen=True, kw_only=True):
    """All plans of some models at one cost. `cost` names it, with its unit."""

    cost: str
    points: tuple[FrontPoint, ...]

    @property
    def models(self) -> list[str]:
        """The models, in order."""
        return list(dict.fromkeys(point.model for point in self.points))

    def of(self, model: str) -> list[FrontPoint]:
        """Return one model's plans."""
        return [point for point in self.points if point.model == model]

    def best(self) -> list[FrontPoint]:
        """Return the plans that no plan of any model beats."""
        return unbeaten(self.points, _offer)


def _offer(point: FrontPoint) -> tuple[float, float]:
    return point.cost, point.accuracy_percent


COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860")
COLUMNS = 2


def plot_fronts(
    fronts: Sequence[CostFront], path: FilePath, published: Mapping[str, float] | None = None
) -> None:
    """Draw every plan as a dot and each model's front as a line; all panels share the axis of accuracy.

    Plans whose accuracy in percent was `published` are drawn with that figure.
    """
    from matplotlib import pyplot

    columns = min(COLUMNS, len(fronts))
    rows = -(-len(fronts) // columns)
    size = (6.4 * columns, 0.6 + 4.2 * rows)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=size, layout="constrained", sharey=True, squeeze=False
    )
    for place in axes.flat[len(fronts) :]:
        place.set_visible(False)
    for front, place in zip(fronts, axes.flat, strict=False):
        _draw(front, place, published or {})
    for row in axes:
        row[0].set_ylabel("top-1 accuracy, %", fontsize=13)
    handles, names = axes[0, 0].get_legend_handles_labels()
    ncols = min(len(names), 2 * columns)
    figure.legend(handles, names, loc="outside upper center", ncols=ncols, fontsize=13, frameon=False)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot write plot {path}: {error}; name a .png, .svg or .pdf") from None
    finally:
        pyplot.close(figure)


def _draw(front: CostFront, axes: Any, published: Mapping[str, float]) -> None:
    for number, model in enumerate(front.models):
        colour, points = COLOURS[number % len(COLOURS)], front.of(model)
        best = unbeaten(points, _offer)
        axes.plot(*_figures(points), ".", color=colour, alpha=0.25, markersize=5)
        axes.plot(*_figures(best), "o-", color=colour, label=model, markersize=5, linewidth=2)
    if compared := [point for point in front.points if point.plan in published]:
        costs, ours = _figures(compared)
        axes.plot(costs, ours, "s", color="tab:orange", label=f"the paper's {len(costs)} plans, ours")
        theirs = [published[one.plan] for one in compared]
        axes.plot(costs, theirs, "x", color="tab:red", label="the same in the paper")
    costs = [point.cost for point in front.points]
    if max(costs) > 4 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(_labelled)
    axes.set_xlabel(front.cost, fontsize=13)
    axes.tick_params(labelsize=11)
    axes.tick_params(axis="x", which="minor", labelsize=9)
    axes.grid(alpha=0.3)


def _figures(points: Sequence[FrontPoint]) -> tuple[list[float], list[float]]:
    """Return the costs of plans, and their accuracies."""
    return [one.cost for one in points], [one.accuracy_percent for one in points]


def _labelled(value: float, position: int | None = None) -> str:
    """Label ticks that begin with 2 or 5, so that labels do not touch."""
    return f"{value:g}" if f"{value:e}"[0] in "25" else ""
