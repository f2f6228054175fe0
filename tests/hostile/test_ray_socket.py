"""A server's port on Ray, before the caller has shown that it knows the secret."""

import asyncio
import socket
from typing import Any, cast

import msgspec
import pytest

from slimsched.serving.live.server import LiveServer
from slimsched.serving.ray import server as actors
from slimsched.serving.ray.messages import Hello
from slimsched.serving.ray.server import ActorSocket

NOBODY = cast(LiveServer, None)
"""No stranger gets through to the server behind the door."""


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5.0):
            return await reader.read(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def with_door(attack: Any) -> None:
    async def run() -> None:
        door = ActorSocket(0, "secret")
        port = await door.open(NOBODY, "127.0.0.1")
        await attack(port)

    asyncio.run(run())


def test_a_long_message_before_any_hello_is_not_kept() -> None:
    async def attack(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((200 * 2**20).to_bytes(4, "little") + b"x" * 2**20)
        assert await is_closed(reader)

    with_door(attack)


def test_a_caller_that_says_nothing_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actors, "HELLO_LIMIT_S", 0.2)

    async def attack(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\x10")
        assert await is_closed(reader)

    with_door(attack)


@pytest.mark.parametrize("secret", ["wrong", "schlüssel", ""])
def test_a_caller_without_the_secret_is_disconnected(secret: str) -> None:
    async def attack(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = msgspec.msgpack.encode(Hello(secret=secret, gateway=1))
        writer.write(len(body).to_bytes(4, "little") + body)
        assert await is_closed(reader)

    with_door(attack)


def test_only_so_many_strangers_are_let_in() -> None:
    async def attack(port: int) -> None:
        crowd = [await asyncio.open_connection("127.0.0.1", port) for _ in range(actors.STRANGERS)]
        late, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await is_closed(late)
        assert crowd[0][1].get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        assert not crowd[0][0].at_eof()

    with_door(attack)
