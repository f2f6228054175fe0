"""Counts a segment's arithmetic and memory traffic by running it once and watching every operator.

Arithmetic comes from torch's own counter of floating-point operations; a multiply-accumulate is two of them.
Operators that the counter does not know (hand-written kernels) count as no arithmetic.
"""

from typing import Any

import torch
from msgspec import Struct
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from slimsched.models.elastic import Segment, Tensors


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))  # type: ignore[no-untyped-call]


CPU_ATTENTION: dict[Any, Any] = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops}


class Traffic(Struct, frozen=True, kw_only=True):
    """One run of one segment, for a whole batch; all but `macs` count numbers, not bytes."""

    macs: int
    moved: int
    largest: int
    weights: int


def watch(segment: Segment, tensors: Tensors) -> tuple[Tensors, Traffic]:
    """Run a segment and return its outputs and what was counted."""
    watcher = _Watcher(tensors)
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its single operator is unknown to the counter
    try:
        with torch.no_grad(), FlopCounterMode(display=False, custom_mapping=CPU_ATTENTION) as flops, watcher:
            given = segment(tensors)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    return given, Traffic(
        macs=flops.get_total_flops() // 2,
        moved=watcher.moved,
        largest=watcher.largest,
        weights=sum(watcher.weights.values()),
    )


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what operators read and write. A tensor that no operator has made is a weight."""

    def __init__(self, inputs: Tensors) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.moved = self.largest = 0
        self.weights: dict[tuple[Any, ...], int] = {}
        self._made = {_memory(one) for one in inputs}
        self._kept: list[Any] = []  # keeps memory in use, so that no address appears twice

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
    """Identify the memory of a tensor; views of one tensor share it."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # opaque layouts, such as oneDNN's, have no storage
        return id(tensor)
