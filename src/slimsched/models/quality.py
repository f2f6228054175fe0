"""The accuracy of each plan of a model and, if measured, which examples it answers correctly.

Accuracy is the share of labelled examples answered correctly. A model without labels can use its agreement
with its own widest plan instead; `name` says which.

Who chooses by a table must not be scored on the examples that it was measured on. So `split` makes two tables
of one: routers choose by the even examples, and runs are scored on the odd ones.
"""

import zipfile
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path as FilePath
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.models.confidence import Confidences, read_confidences
from slimsched.models.escalation_table import EscalationTable
from slimsched.models.plan_tree import PlanTree
from slimsched.models.spec import Path

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

    @classmethod
    def from_bits(
        cls,
        tree: PlanTree,
        *,
        name: str,
        correct: NDArray[np.uint8],
        examples: int,
        confidences: Confidences | None = None,
    ) -> Self:
        """Build the table from bits (plans, ceil(examples / 8)); accuracy is their mean."""
        wanted = (len(tree.plans), -(-examples // 8))
        if correct.dtype != np.uint8 or correct.shape != wanted:
            raise DataError(
                f"quality table '{name}': expected uint8 {wanted} for {wanted[0]} plans and {examples} "
                f"examples, got {correct.dtype} {correct.shape}; write it again with slim model evaluate"
            )
        accuracy = np.unpackbits(correct, axis=1, count=examples).mean(axis=1, dtype=np.float64)
        return cls(
            tree, name=name, accuracy=accuracy, correct=correct, examples=examples, confidences=confidences
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
        right = np.unpackbits(self._correct, axis=1, count=self.examples)[:, among]
        return QualityTable(
            self.tree,
            name=self.name,
            accuracy=right.mean(axis=1, dtype=np.float64),
            correct=self._correct,
            examples=self.examples,
            among=among,
            confidences=self.confidences,
        )

    @property
    def bits(self) -> NDArray[np.uint8] | None:
        """One bit per plan and example, packed along the examples; None if examples were not measured."""
        return self._correct

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
    path: FilePath,
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
