"""Who runs batches on a device: the seam between a server and its hardware."""

from typing import Protocol, runtime_checkable

from torch import Tensor

from slimsched.serving.domain.instance import Instance
from slimsched.serving.domain.key import Key


class Executor(Protocol):
    """Loads and unloads instances and runs batches of one key; any thread may call `run`."""

    @property
    def lanes(self) -> int:
        """How many batches may run at once."""
        ...

    @property
    def element_bytes(self) -> int:
        """Bytes of one number of an activation."""
        ...

    def activation(self, shape: tuple[int, ...]) -> Tensor:
        """A random activation of this shape, as a segment would leave it."""
        ...

    def load(self, instance: Instance) -> int:
        """Make an instance ready; return the bytes it really takes."""
        ...

    def unload(self, instance: int) -> None:
        """Give an instance's memory back."""
        ...

    def inputs(self, images: Tensor) -> Tensor:
        """uint8 images (N, 3, side, side) as the first segment takes them."""
        ...

    def run(self, key: Key, inputs: Tensor) -> Tensor:
        """Run one segment; the result may be used once this returns."""
        ...

    def memory_bytes(self) -> int:
        """Bytes that loaded instances hold now."""
        ...


class Launched(Protocol):
    """A segment under way on a device."""

    def ready(self) -> bool:
        """Whether `wait` would return at once."""
        ...

    def wait(self) -> Tensor:
        """The result, once it may be used; asked for once."""
        ...


@runtime_checkable
class OverlappingExecutor(Executor, Protocol):
    """One whose device works while the host goes on."""

    def launch(self, key: Key, inputs: Tensor, instance: int | None = None) -> Launched:
        """Begin one segment, on this instance or else on any that is free, and return at once."""
        ...
