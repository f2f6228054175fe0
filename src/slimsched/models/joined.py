"""Several models for the same task as one: the first choice decides in which member a request runs.

The joined model has every plan of every member. Its choices are the members' choices with the member's name
in front, such as 'slimvit-0.5'. A plan never leaves its member, because each choice belongs to one. Quality,
figures and profiles come from the members: nothing is measured twice. This module imports no torch.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from slimsched.kernel.errors import ConfigError
from slimsched.models.confidence import Confidences
from slimsched.models.figures import ModelFigures, Place
from slimsched.models.measured import worth_stopping
from slimsched.models.plan_tree import PlanTree
from slimsched.models.quality import QualityTable
from slimsched.models.spec import ANY, ModelSpec, Step


class Member(Struct, frozen=True, kw_only=True):
    """One of the models; `quality` is None if its plans were not evaluated."""

    spec: ModelSpec
    figures: ModelFigures
    quality: QualityTable | None = None


class Joined:
    """The joined model: its spec, and where each of its choices, steps and plans comes from.

    `home` gives the member and the member's choice of each (segment, choice).
    """

    def __init__(
        self, name: str, members: Sequence[Member], *, version: str = "1", description: str = ""
    ) -> None:
        _check(name, members)
        self.members = tuple(members)
        self.home: dict[Place, tuple[int, int]] = {}
        segments = []
        for segment in range(max(len(one.spec.segments) for one in members)):
            ordered = sorted(self._costs(segment))
            self.home |= {(segment, at): (member, choice) for at, (_, member, choice) in enumerate(ordered)}
            segments.append(tuple(self._name(segment, member, choice) for _, member, choice in ordered))
        place = {(member, at[0], choice): at[1] for at, (member, choice) in self.home.items()}
        self.origin = [(number, plan) for number, one in enumerate(members) for plan in one.spec.plans]
        """The member and the member's plan of each plan."""
        first = members[0].spec
        self.spec = ModelSpec(
            name=name,
            version=version,
            inputs=first.inputs,
            outputs=first.outputs,
            segments=tuple(segments),
            plans=tuple(
                tuple(place[number, segment, choice] for segment, choice in enumerate(plan))
                for number, plan in self.origin
            ),
            follows_previous=len(segments) > 1,
            labels=first.labels,
            description=description,
        )

    def member_step(self, step: Step) -> tuple[int, Step]:
        """Return the member that runs a step, and the step as the member numbers it."""
        segment, choice, previous = step
        member, own = self.home[segment, choice]
        if not self.members[member].spec.follows_previous:
            return member, (segment, own, ANY)
        return member, (segment, own, self.home[segment - 1, previous][1] if previous >= 0 else previous)

    @cached_property
    def figures(self) -> ModelFigures:
        """The figures of the members' steps."""
        origin = {step: self.member_step(step) for step in self.spec.steps()}
        places = {at: self.home[at] for at in self.spec.places()}
        each = [one.figures for one in self.members]
        return ModelFigures(
            steps={step: each[member].steps[own] for step, (member, own) in origin.items()},
            weights={at: each[member].weights[at[0], own] for at, (member, own) in places.items()},
            output={at: each[member].output[at[0], own] for at, (member, own) in places.items()},
            workspace={at: each[member].workspace[at[0], own] for at, (member, own) in places.items()},
        )

    def quality(self) -> QualityTable:
        """Return the members' tables as one; example by example if all have the same examples."""
        tables = [one.quality for one in self.members]
        known = [table for table in tables if table is not None]
        missing = [one.spec.name for one in self.members if one.quality is None]
        if missing:
            raise ConfigError(
                f"member '{missing[0]}' has no quality table; run slim model evaluate on it first"
            )
        tree, name = PlanTree(self.spec.plans), " and ".join(dict.fromkeys(table.name for table in known))
        bits = [table.bits for table in known]
        if len({table.examples for table in known}) > 1 or any(one is None for one in bits):
            return QualityTable(tree, name=name, accuracy=np.concatenate([table.by_plan for table in known]))
        correct = np.concatenate([one for one in bits if one is not None])
        return QualityTable.from_bits(
            tree,
            name=name,
            correct=correct,
            examples=known[0].examples,
            confidences=self._confidences(known, correct),
        )

    def _confidences(self, tables: Sequence[QualityTable], correct: NDArray[np.uint8]) -> Confidences | None:
        """Join how sure the members' plans are.

        Whether an answer is that of the widest plan is known inside the widest plan's own member. For other
        members, two right answers count as the same answer, and two wrong ones as different.
        """
        parts = [table.confidences for table in tables]
        if any(part is None for part in parts):
            return None
        known = [part for part in parts if part is not None]
        widest = self.spec.plans.index(self.spec.widest)
        starts = np.cumsum([0, *(len(table.tree.plans) for table in tables)])
        right = np.unpackbits(correct, axis=1, count=tables[0].examples).astype(bool)
        plans = [
            [int(start) + plan for plan in part.plans] for start, part in zip(starts, known, strict=False)
        ]
        agrees = [
            part.agrees if number == self.origin[widest][0] else right[rows] & right[widest]
            for number, (part, rows) in enumerate(zip(known, plans, strict=True))
        ]
        numbers = [plan for rows in plans for plan in rows]
        kept = self._worth_stopping(numbers, right, widest)
        return Confidences(
            plans=[numbers[row] for row in kept],
            edges=np.concatenate([part.edges for part in known])[kept],
            levels=np.concatenate([part.levels for part in known])[kept],
            agrees=np.concatenate(agrees)[kept],
        )

    def _worth_stopping(self, plans: Sequence[int], right: NDArray[np.bool_], widest: int) -> list[int]:
        """Return the rows of the plans that are worth stopping at, among all members' plans."""
        costs = [float(self.figures.plan_macs(self.spec, self.spec.plans[plan])) for plan in plans]
        return worth_stopping(right[plans].mean(axis=1), np.array(costs), plans.index(widest))

    def _costs(self, segment: int) -> list[tuple[int, int, int]]:
        """Return (MACs of the cheapest plan through a choice, member, choice), one per choice of a member."""
        cheapest: dict[tuple[int, int], int] = {}
        for number, one in enumerate(self.members):
            for plan in one.spec.plans:
                if len(plan) > segment:
                    macs, at = one.figures.plan_macs(one.spec, plan), (number, plan[segment])
                    cheapest[at] = min(macs, cheapest.get(at, macs))
        return [(macs, *at) for at, macs in cheapest.items()]

    def _name(self, segment: int, member: int, choice: int) -> str:
        spec = self.members[member].spec
        return f"{spec.name}-{spec.segments[segment][choice]}"


def _check(name: str, members: Sequence[Member]) -> None:
    """Raise ConfigError if models cannot be joined."""
    if len(members) < 2:
        raise ConfigError(f"model '{name}' has {len(members)} member; join two or more")
    names = [one.spec.name for one in members]
    if len(set(names)) < len(names):
        raise ConfigError(f"model '{name}': two members have the same name ({', '.join(names)})")
    first = members[0].spec
    for one in members[1:]:
        for what in ("inputs", "outputs", "labels"):
            ours, theirs = getattr(first, what), getattr(one.spec, what)
            if ours != theirs and not (what == "labels" and not (ours and theirs)):
                raise ConfigError(
                    f"model '{name}': members '{first.name}' and '{one.spec.name}' have different {what}; "
                    "join models for the same task"
                )
