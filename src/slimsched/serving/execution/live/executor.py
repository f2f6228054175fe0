"""The interface of executors, which run a server's batches on a device."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.cluster import Instance
from slimsched.serving.domain.request import Key
from slimsched.serving.execution.live.hosted_model import HostedModel


class Executor(Protocol):
    """Loads and unloads instances and runs batches of one key; any thread may call `run`."""

    @property
    def device(self) -> torch.device:
        """Where models run."""
        ...

    @property
    def lanes(self) -> int:
        """How many batches may run at once."""
        ...

    def host(self, model: HostedModel) -> None:
        """Take one more model; raises if some part of it cannot run."""
        ...

    def release(self, model: int) -> None:
        """Let a model go, of which nothing is loaded any more."""
        ...

    def load(self, instance: Instance) -> int:
        """Load an instance; return the bytes it takes."""
        ...

    def unload(self, instance: int) -> None:
        """Unload an instance and free its memory."""
        ...

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        """Run one segment; the result is complete when this returns.

        The first segment takes raw inputs; the last segment of a plan returns the outputs for clients.
        """
        ...

    def example(self, key: Key, rows: int) -> Tensors:
        """Make random inputs for a key, where this device expects them."""
        ...

    def ends(self, key: Key) -> bool:
        """Whether a key completes a plan."""
        ...

    def is_confident(self, model: int) -> bool:
        """Whether complete plans of a model give one more tensor: how sure each answer is."""
        ...

    def element_bytes(self, model: int) -> int:
        """Bytes per number in a model's activations."""
        ...

    def memory_bytes(self) -> int:
        """Bytes that loaded instances hold now."""
        ...


class Launched(Protocol):
    """Segments that are running on a device."""

    @property
    def legs_s(self) -> tuple[float, ...]:
        """How long the device worked for each of several segments, if it can tell; known after `wait`."""
        ...

    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> list[Tensors]:
        """Wait for the result of the last segment, with what those before it gave if it was kept.

        Call this once.
        """
        ...


@runtime_checkable
class OverlappingExecutor(Executor, Protocol):
    """An executor whose device works in parallel with the host."""

    def launch(
        self,
        legs: Sequence[Key],
        pieces: Sequence[Tensors],
        instances: Sequence[int] = (),
        *,
        keep: bool = False,
    ) -> Launched:
        """Start segments one after the other on these instances, or on any free ones, and return at once.

        The inputs come in pieces: the rows of one, then those of the next. With `keep`, what each segment
        gave is part of the result.
        """
        ...

    def prepare_plans(self) -> None:
        """Get whole plans ready that loaded instances can run."""
        ...
