"""What all adapters share: functions of single tensors become segments, and one place for the options."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.model_error import ModelError
from slimsched.models.spec import ModelSpec

Function = Callable[..., Any]
"""A user's function or module: takes the tensors one by one, gives a tensor or several."""


class Adapter(ElasticModel):
    """Takes the user's own `prepare` and `finish`, which work on tensors instead of tuples of tensors."""

    def __init__(
        self, spec: ModelSpec, *, prepare: Function | None = None, finish: Function | None = None
    ) -> None:
        self.spec = spec
        self._prepare = as_segment(prepare) if prepare is not None else None
        self._finish = as_segment(finish) if finish is not None else None

    def prepare(self, raw: Tensors) -> Tensors:
        """Run the user's `prepare`, if there is one."""
        return raw if self._prepare is None else self._prepare(raw)

    def finish(self, last: Tensors) -> Tensors:
        """Run the user's `finish`, if there is one."""
        return last if self._finish is None else self._finish(last)


def as_segment(function: Function) -> Segment:
    """Make a segment of a module or function, whether it gives one tensor or several."""

    def run(tensors: Tensors) -> Tensors:
        given = function(*tensors)
        if isinstance(given, Tensor):
            return (given,)
        return tuple(given)

    return run


def require(fits: bool, what: str, remedy: str) -> None:
    """Refuse a description that an adapter cannot serve."""
    if not fits:
        raise ModelError(what, remedy=remedy)
