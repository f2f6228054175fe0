"""The interface that training and evaluation use, and how a trained network is kept on disk."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct, structs
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slimsched.core.config import DataError, WidthError
from slimsched.models.package import CARD, ModelCard, Shape
from slimsched.models.width import SEGMENTS, check_width, check_widths


def check_input(shape: Shape, segment: int, x: Tensor) -> None:
    """Raise DataError if a segment cannot take a tensor of this shape."""
    takes = shape.takes(segment)
    if tuple(x.shape[1:]) not in takes:
        wanted = " or ".join(f"(N, {', '.join(map(str, one))})" for one in takes)
        raise DataError(f"segment {segment} was given shape {tuple(x.shape)}; it takes {wanted}")


class SlimNetworkSegment(nn.Module, ABC):
    """One quarter of a slimmable network, at any width: takes (x, width)."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.shape, self.index = shape, index

    @abstractmethod
    def layers_at(self, width: float, previous: float | None) -> list[nn.Module]:
        """Slice and fold the layers for one width; `previous` is the width of the segment before."""

    def forward(self, x: Tensor, width: float) -> Tensor:
        """Normalized images or the activation of the segment before -> activation, at last logits."""
        check_width(width)
        check_input(self.shape, self.index, x)
        return self.run(x, width)

    @abstractmethod
    def run(self, x: Tensor, width: float) -> Tensor:
        """Run at a width that is known to be one of the four."""


class SegmentAtWidth(nn.Module):
    """One segment at one width: plain weights, sliced and folded once.

    It never changes after loading, so that several slots can share one.
    """

    def __init__(self, segment: SlimNetworkSegment, *, width: float, previous: float | None) -> None:
        super().__init__()
        check_width(width)
        self.shape, self.segment = segment.shape, segment.index
        self.layers = nn.Sequential(*segment.layers_at(width, previous))
        self.eval()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Images or activation in this instance's precision -> activation (logits after the last segment)."""
        check_input(self.shape, self.segment, x)
        y: Tensor = self.layers(x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x)
        return y


class SlimNetwork(nn.Module):
    """A slimmable network; `net(x, widths)` runs any width tuple, `net.segment(i)(x, width)` one segment."""

    def __init__(self, shape: Shape, segments: Iterable[SlimNetworkSegment]) -> None:
        super().__init__()
        self.shape = shape
        self.segments = nn.ModuleList(segments)

    def segment(self, index: int) -> SlimNetworkSegment:
        """Return one segment, which takes (x, width)."""
        if not 0 <= index < SEGMENTS:
            raise WidthError(f"segment {index} does not exist; the network has segments 0 to {SEGMENTS - 1}")
        segment = self.segments[index]
        assert isinstance(segment, SlimNetworkSegment)
        return segment

    def instance(self, segment: int, *, width: float, previous: float | None = None) -> SegmentAtWidth:
        """Return one segment at one width, ready to run; `previous` is the width of the segment before."""
        return SegmentAtWidth(self.segment(segment), width=width, previous=previous)

    def forward(self, x: Tensor, widths: tuple[float, ...]) -> Tensor:
        """(N, 3, H, W) normalized images -> (N, classes) logits."""
        check_widths(widths)
        for index, width in enumerate(widths):
            x = self.segment(index)(x, width)
        return x


# -- A trained network on disk: model.safetensors (half precision) beside model.json, which describes it.
#
# Loading checks the file's hash, every tensor's shape and the class count before anything runs.


class Trained(Struct, frozen=True, kw_only=True):
    """A network with its card."""

    net: SlimNetwork
    card: ModelCard


def save(folder: Path, net: SlimNetwork, card: ModelCard) -> ModelCard:
    """Write weights in half precision and the card that goes with them; return the card with their hash."""
    tensors = {key: value.detach().half().contiguous().cpu() for key, value in net.state_dict().items()}
    raw = save_tensors(tensors, metadata={"name": card.name})
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CARD).with_suffix(".safetensors").write_bytes(raw)
    card = structs.replace(card, weights_sha256=hashlib.sha256(raw).hexdigest())
    (folder / CARD).write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
    return card


class NotDrawn(TorchFunctionMode):
    """Draws zeros for weights that are read from a file: random numbers take 0.3 s."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of PyTorch; zeros satisfy those that draw until all numbers are within limits."""
        if function in (nn.init.normal_, Tensor.normal_, Tensor.uniform_):
            return (args[0] if args else kwargs["tensor"]).zero_()
        return function(*args, **(kwargs or {}))
