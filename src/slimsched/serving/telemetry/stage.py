"""Stages: the segments of all models in one list, and the names of all choices in another.

Tables and pictures of a run count by stage and by name, so that they work the same for one model or several.
"""

from collections.abc import Sequence

from slimsched.serving.domain.model import ModelOutline


class Stages:
    """Numbers the segments of all models in one sequence, and the names of their choices in another."""

    def __init__(self, models: Sequence[ModelOutline]) -> None:
        self.first: list[int] = []
        """The number of each model's first stage."""
        self.labels: list[str] = []
        """The label of each stage: its number, after its model's name if there are several models."""
        self.models: list[int] = []
        """The model of each stage."""
        self.names: list[str] = []
        """The names of all choices, narrowest first where models agree on the order."""
        for number, model in enumerate(models):
            self.first.append(len(self.labels))
            prefix = f"{model.name} " if len(models) > 1 else ""
            self.labels += [f"{prefix}{segment + 1}" for segment in range(len(model.segments))]
            self.models += [number] * len(model.segments)
            for names in model.segments:
                self._merge(names)
        place = {name: number for number, name in enumerate(self.names)}
        self.choices = [[place[name] for name in names] for model in models for names in model.segments]
        """The choices of each stage, as indices into `names`, narrowest first."""

    def __len__(self) -> int:
        return len(self.labels)

    def stage(self, model: int, segment: int) -> int:
        """Return the stage number of a model's segment."""
        return self.first[model] + segment

    def last(self, model: int) -> int:
        """Return the number of a model's last stage."""
        return self.first[model + 1] - 1 if model + 1 < len(self.first) else len(self.labels) - 1

    def name(self, model: int, segment: int, choice: int) -> int:
        """Return the index of a choice's name in `names`."""
        return self.choices[self.first[model] + segment][choice]

    def _merge(self, names: Sequence[str]) -> None:
        """Add new names, each before the next wider one that is already known."""
        for position, name in enumerate(names):
            if name not in self.names:
                wider = [self.names.index(other) for other in names[position:] if other in self.names]
                self.names.insert(wider[0] if wider else len(self.names), name)
