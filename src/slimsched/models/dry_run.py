"""What one segment computes and moves, found by running it once and watching every operator.

Arithmetic comes from torch's own counter of floating-point operations; a multiply-accumulate is two of them.
Operators that the counter does not know (hand-written kernels) count as no arithmetic.
"""

from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from slimsched.models.elastic import Segment, Tensors


class Traffic(Struct, frozen=True, kw_only=True):
    """One run of one segment, for a whole batch; all but `macs` count numbers, not bytes."""

    macs: int
    moved: int
    largest: int
    weights: int


def watch(segment: Segment, tensors: Tensors) -> tuple[Tensors, Traffic]:
    """Run a segment and count."""
    watcher = _Watcher(tensors)
    with torch.no_grad(), FlopCounterMode(display=False) as flops, watcher:
        given = segment(tensors)
    return given, Traffic(
        macs=flops.get_total_flops() // 2,
        moved=watcher.moved,
        largest=watcher.largest,
        weights=sum(watcher.weights.values()),
    )


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operators read and write. What no operator of the run has made is a weight."""

    def __init__(self, inputs: Tensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = self.largest = 0
        self.weights: dict[tuple[Any, ...], int] = {}
        self._made = {_memory(one) for one in inputs}
        self._kept: list[Any] = []  # memory that is in use is not given out again under the same address

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        read = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        written = [one for one in tree_leaves(given) if isinstance(one, Tensor)]
        if func.is_view:
            return given
        for one in read:
            if _memory(one) not in self._made:
                self.weights[_memory(one), tuple(one.shape)] = one.numel()
        for one in written:
            if all(_memory(one) != _memory(other) for other in read if _memory(other) not in self._made):
                self._made.add(_memory(one))
        self._kept += written
        activations = sum(one.numel() for one in read if _memory(one) in self._made)
        activations += sum(one.numel() for one in written)
        self.moved += activations
        self.largest = max(self.largest, activations)
        return given


def _memory(tensor: Tensor) -> int:
    """Which piece of memory a tensor lies in; views lie in the same one."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # opaque layouts, such as oneDNN's, have no storage
        return id(tensor)
