"""The base of all adapters: turns functions of tensors into segments, and keeps `prepare` and `finish`."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.model_error import ModelError
from slimsched.models.spec import ModelSpec

Function = Callable[..., Any]
"""A user's function or module; it takes tensors as arguments and returns one tensor or several."""


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
    """Turn a module or function that returns one tensor or several into a segment."""

    def run(tensors: Tensors) -> Tensors:
        given = function(*tensors)
        if isinstance(given, Tensor):
            return (given,)
        return tuple(given)

    return run


def require(fits: bool, what: str, remedy: str) -> None:
    """Raise ModelError if a description does not fit an adapter."""
    if not fits:
        raise ModelError(what, remedy=remedy)
