"""Frozen copies of a module, which share its tensors and nothing else.

Elastic networks usually keep the width in use as an attribute of their layers. A server runs several widths
at once, so each width gets its own copy of the module tree. All copies use the same parameters and buffers,
so a copy costs a few kilobytes, and weights are in memory once.
"""

from copy import deepcopy
from typing import TypeVar

from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)


def frozen_copy(module: M) -> M:
    """Copy a module tree that shares all its tensors with the original."""
    shared: dict[int, object] = {}
    for part in module.modules():
        for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False), *vars(part).values()):
            if isinstance(tensor, Tensor):
                shared[id(tensor)] = tensor  # deepcopy reuses these instead of copying them
    return deepcopy(module, shared)
