"""The interface that training and evaluation use: a network of four segments that can run at any width."""

from abc import ABC, abstractmethod
from collections.abc import Callable

from torch import Tensor, nn

from slimsched.models.network_shape import Shape
from slimsched.models.width import tuple_index


class SlimNetwork(nn.Module, ABC):
    """A slimmable network; `net(x, widths)` runs any width tuple, `net.segment(i)(x, width)` one segment."""

    shape: Shape
    segments: nn.ModuleList

    def segment(self, index: int) -> nn.Module:
        """Return one segment, which takes (x, width)."""
        segment = self.segments[index]
        assert isinstance(segment, nn.Module)
        return segment

    @abstractmethod
    def instance(
        self, segment: int, *, width: float, previous: float | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Return one segment at one width, ready to run; `previous` is the width of the segment before."""

    def forward(self, x: Tensor, widths: tuple[float, ...]) -> Tensor:
        """(N, 3, H, W) normalized images -> (N, classes) logits."""
        tuple_index(widths)
        for index, width in enumerate(widths):
            x = self.segment(index)(x, width)
        return x
