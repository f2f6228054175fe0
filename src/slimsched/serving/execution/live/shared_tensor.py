"""Moves tensors between server processes through shared memory, with one copy on each side."""

import errno
import mmap
import os
import secrets
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from slimsched.core.config import new_private_file, open_private_file
from slimsched.serving.execution.live.shared_folder import FOLDERS
from slimsched.serving.execution.live.tensor_facts import TensorFacts


def view_of(facts: TensorFacts, raw: bytes | bytearray | mmap.mmap) -> Tensor:
    """Return bytes as the tensor that they hold, without a copy."""
    flat = torch.frombuffer(raw, dtype=getattr(torch, facts.dtype))
    return flat.as_strided(facts.shape, facts.strides)


def facts_of(tensor: Tensor) -> TensorFacts:
    """Describe a dense tensor."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorFacts(shape=tuple(tensor.shape), strides=tuple(tensor.stride()), dtype=dtype)


def dense(tensor: Tensor) -> Tensor:
    """Return the tensor without gaps in memory, with its dimensions in the same memory order."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    return tensor if span == tensor.numel() else tensor.contiguous()


def put(tensor: Tensor, prefix: str) -> tuple[str, TensorFacts]:
    """Write a tensor to shared memory; return the name and the facts needed to read it."""
    values = dense(tensor.detach())
    facts, size = facts_of(values), max(1, values.numel() * values.element_size())
    name = f"{prefix}-{os.getpid()}-{secrets.token_hex(8)}"  # nobody can take it before
    with _room(name, size) as file, mmap.mmap(file.fileno(), size) as shared:
        view = view_of(facts, shared)
        view.copy_(values)
        del view
    return name, facts


def _room(name: str, size: int) -> BinaryIO:
    """Open a private file of this size, in the first folder that has it."""
    full = OSError(errno.ENOSPC, "no folder for shared memory")
    for folder in FOLDERS:
        number = new_private_file(folder / name)
        try:
            _allocate(number, size)
        except OSError as error:
            os.close(number)
            (folder / name).unlink()
            full = error
        else:
            return os.fdopen(number, "w+b")
    raise full


def _allocate(file: int, size: int) -> None:
    """Take the room now: a process that writes where there is none is ended by the system."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


def take(name: str, facts: TensorFacts) -> Tensor:
    """Read a tensor back and remove it from shared memory."""
    missing: OSError = FileNotFoundError(errno.ENOENT, "no such shared memory", name)
    for path in (folder / Path(name).name for folder in FOLDERS):
        try:
            file = open_private_file(path)
        except OSError as error:  # it is in the next folder, whatever somebody put here
            missing = error
        else:
            with os.fdopen(file, "rb") as opened:
                raw = bytearray(opened.read())
            path.unlink()
            return view_of(facts, raw)
    raise missing
