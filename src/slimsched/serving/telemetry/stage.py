"""Stages: the segments of all models in one line, and the names of all choices in one list.

Tables and pictures of a run count by stage and by name, so that one model looks as several do.
"""

from collections.abc import Sequence

from slimsched.serving.domain.served_model import ServedModel


class Stages:
    """Numbers the segments of all models one after the other, and the names of their choices."""

    def __init__(self, models: Sequence[ServedModel]) -> None:
        self.first: list[int] = []
        """The number of each model's first stage."""
        self.labels: list[str] = []
        """What each stage is called: its number, with its model's name where there are several."""
        self.names: list[str] = []
        """The names of all choices, narrowest first as far as models agree."""
        self._place: list[list[list[int]]] = []
        for model in models:
            self.first.append(len(self.labels))
            prefix = f"{model.name} " if len(models) > 1 else ""
            self.labels += [f"{prefix}{number + 1}" for number in range(model.segments)]
            self._place.append([[self._number(name) for name in names] for names in model.spec.segments])

    def __len__(self) -> int:
        return len(self.labels)

    def stage(self, model: int, segment: int) -> int:
        """The number of a model's segment among all stages."""
        return self.first[model] + segment

    def last(self, model: int) -> int:
        """The number of a model's last stage."""
        return self.first[model + 1] - 1 if model + 1 < len(self.first) else len(self.labels) - 1

    def name(self, model: int, segment: int, choice: int) -> int:
        """The number of a choice's name among all names."""
        return self._place[model][segment][choice]

    def _number(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
        return self.names.index(name)
