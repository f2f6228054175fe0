"""Moves activations between processes of one machine: requests use a Unix socket, data shared memory."""

import asyncio
import errno
import mmap
import os
import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch
from msgspec import Struct
from torch import Tensor

from slimsched.core.config import new_private_file, open_private_file
from slimsched.models.elastic import Tensors
from slimsched.serving.live.memory import FOLDERS
from slimsched.serving.live.wire import Fetch, Fetched, FrameConnection, SharedTensor, TensorFacts, is_same

# -- Moves tensors between server processes through shared memory, with one copy on each side.


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


Surrender = Callable[[Sequence[int]], Tensors | None]


class PeerLinks(ABC):
    """Connections to other servers, opened when they are first needed; answers come in order of questions."""

    def __init__(self, answers: Any) -> None:
        """`answers` is what other servers say."""
        self._answers = answers
        self._to: dict[str, FrameConnection] = {}
        self._asked: dict[FrameConnection, deque[asyncio.Future[Any]]] = {}

    @abstractmethod
    async def connect(self, peer: str, make: Callable[[], FrameConnection]) -> FrameConnection:
        """Open a connection to the server at `peer`; raise OSError if it is gone."""

    @abstractmethod
    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations from the server at `peer`; None if it is gone or does not have all of them."""

    async def ask(self, peer: str, question: Fetch, limit_s: float | None = None) -> Any:
        """Return what the server at `peer` answers; None if it is gone, or silent for this long."""
        try:
            if (connection := self._to.get(peer)) is None:
                connection = await self.connect(
                    peer, lambda: FrameConnection(self._answers, self._answered, self._lost)
                )
                self._asked[connection] = deque()
                connection = self._to.setdefault(peer, connection)
        except OSError:
            return None
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._asked[connection].append(answer)
        connection.send(question)
        silent = None if limit_s is None else loop.call_later(limit_s, connection.abort)
        found = await answer
        if silent is not None:
            silent.cancel()
        return found

    def _answered(self, connection: FrameConnection, found: Struct) -> None:
        answer = self._asked[connection].popleft()
        if not answer.done():
            answer.set_result(found)

    def _lost(self, connection: FrameConnection) -> None:
        """Forget a lost server; a new server at the same address gets a new connection."""
        self._to = {peer: one for peer, one in self._to.items() if one is not connection}
        for answer in self._asked.pop(connection, ()):
            if not answer.done():
                answer.set_result(None)


class UnixPeers(PeerLinks):
    """Both ends: fetches from other servers over Unix sockets, and hands over what they request."""

    def __init__(self, shared_prefix: str, secret: str) -> None:
        super().__init__(Fetched)
        self._prefix, self._secret = shared_prefix, secret

    async def connect(self, peer: str, make: Callable[[], FrameConnection]) -> FrameConnection:
        """Open a connection to the server at this path."""
        return (await asyncio.get_running_loop().create_unix_connection(make, peer))[1]

    async def fetch(self, peer: str, requests: Sequence[int]) -> Tensors | None:
        """Fetch activations through shared memory."""
        fetched = await self.ask(peer, Fetch(requests=list(requests), secret=self._secret))
        try:
            tensors = [self._take(one) for one in fetched.tensors] if fetched is not None else []
        except OSError:
            return None
        whole = [tensor for tensor in tensors if tensor is not None]
        return tuple(whole) if whole and len(whole) == len(tensors) else None

    async def listen(self, path: str, surrender: Surrender) -> asyncio.Server:
        """Listen at `path` and answer requests with what `surrender` returns."""

        def hand_over(connection: FrameConnection, wanted: Fetch) -> None:
            if not is_same(wanted.secret, self._secret):
                connection.abort()
                return
            rows = surrender(wanted.requests)
            connection.send(Fetched(tensors=[self._put(tensor) for tensor in rows or ()]))

        return await asyncio.get_running_loop().create_unix_server(
            lambda: FrameConnection(Fetch, hand_over, lambda _: None), path
        )

    def _put(self, tensor: Tensor) -> SharedTensor:
        name, facts = put(tensor, self._prefix)
        return SharedTensor(name=name, facts=facts)

    def _take(self, shared: SharedTensor) -> Tensor | None:
        return take(shared.name, shared.facts) if shared.name and shared.facts else None
