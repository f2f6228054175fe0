"""Who runs batches on a device: the seam between a server and its hardware."""

from typing import Protocol, runtime_checkable

import torch

from slimsched.models.elastic import Tensors
from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import Key
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
        """Make an instance ready; return the bytes it really takes."""
        ...

    def unload(self, instance: int) -> None:
        """Give an instance's memory back."""
        ...

    def run(self, key: Key, inputs: Tensors) -> Tensors:
        """Run one segment; the result may be used once this returns.

        The first segment takes raw inputs; the last one of a plan gives what clients see.
        """
        ...

    def example(self, key: Key, rows: int) -> Tensors:
        """Made-up inputs of a key, as they would lie on this device."""
        ...

    def ends(self, key: Key) -> bool:
        """Whether a key completes a plan."""
        ...

    def element_bytes(self, model: int) -> int:
        """Bytes of one number of a model's activations."""
        ...

    def memory_bytes(self) -> int:
        """Bytes that loaded instances hold now."""
        ...


class Launched(Protocol):
    """A segment under way on a device."""

    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> Tensors:
        """The result, once it may be used; asked for once."""
        ...


@runtime_checkable
class OverlappingExecutor(Executor, Protocol):
    """One whose device works while the host goes on."""

    def launch(self, key: Key, inputs: Tensors, instance: int | None = None) -> Launched:
        """Begin one segment, on this instance or else on any that is free, and return at once."""
        ...
