"""The plans of a model as a tree: each beginning of a plan is a node, each plan is a leaf."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import Path

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
        self.is_free = len(set(self.kind.values())) == 1 + max(map(len, self.plans))
        """Whether every choice fits every path: all paths of one length are of one kind."""
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
