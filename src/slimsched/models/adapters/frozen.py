"""Frozen copies of a module: they share every tensor, and nothing else.

Elastic networks usually keep the width in use as an attribute of their layers. A server runs several widths
at once, so each width gets a copy of the module tree of its own. Parameters and buffers are the same tensors
in all copies: a copy costs a few kilobytes, and loaded weights are there once.
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
                shared[id(tensor)] = tensor  # deepcopy takes what it finds here instead of copying it
    return deepcopy(module, shared)
