"""A standard-library executor that runs calls as Ray tasks, so that sweeps need no Ray code."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

from slimsched.serving.execution.ray.connection import connect

T = TypeVar("T")


class RayTasks(Executor):
    """Runs each call as a one-CPU task on any free CPU of the cluster."""

    def __init__(self, address: str | None = None) -> None:
        connect(address, "")
        import ray

        self._call = ray.remote(_call)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run one call as a task."""
        future: Future[T] = self._call.remote(fn, args, kwargs).future()
        return future


def _call(fn: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
    return fn(*args, **kwargs)
