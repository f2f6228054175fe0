"""The outline of a model: the names needed to read logs, frames and reports without the model."""

from collections.abc import Sequence

from msgspec import Struct

from slimsched.serving.domain.served_model import ServedModel


class ModelOutline(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model's name, the names of each segment's choices (narrowest first), and its plans.

    A plan is written with commas, such as '0.5,1.0'. The place of a plan in `plans` is its number in the
    arrays of a run folder. `plans` is empty where they are not needed.
    """

    name: str
    segments: tuple[tuple[str, ...], ...]
    plans: tuple[str, ...] = ()

    def names_of_plan(self, plan: int) -> list[str]:
        """List the names of a plan's choices, one per segment that it runs."""
        return self.plans[plan].split(",")


def outlines(models: Sequence[ServedModel], *, plans: bool = False) -> tuple[ModelOutline, ...]:
    """Outline the models of a cluster, with their plans if asked for."""
    return tuple(
        ModelOutline(
            name=model.name,
            segments=model.spec.segments,
            plans=tuple(map(model.spec.text, model.tree.plans)) if plans else (),
        )
        for model in models
    )
