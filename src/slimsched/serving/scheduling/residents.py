"""Residents: the instances that stay loaded."""

from collections.abc import Iterable

from slimsched.serving.domain.served_model import ServedModel


def resident_places(names: Iterable[str], models: Iterable[ServedModel]) -> list[tuple[int, int, int]]:
    """List (model, segment, choice) of all resident instances, in the order of the option's names.

    'widest' means the last choice of each segment, which contains the others. In a model that is not nested
    it means every choice.
    """
    served = list(models)
    return [
        (model.number, segment, choice)
        for name in names
        for model in served
        for segment, choice in model.spec.places()
        if _is_named(model, segment, choice, name)
    ]


def _is_named(model: ServedModel, segment: int, choice: int, name: str) -> bool:
    choices = model.spec.segments[segment]
    if name == "widest":
        return not model.spec.nested or choice == len(choices) - 1
    return choices[choice] == name
