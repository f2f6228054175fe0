"""A process of ours, a server or a front, started and awaited without holding up the event loop.

An event loop that starts a process by itself stops for 25 to 70 ms meanwhile: it copies the page tables of
the gateway, and waits until the new program runs. That alone would make answers late.
"""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from threading import Thread


class ChildProcess:
    """Runs a module that reads its spec from standard input, and knows when it ends."""

    def __init__(
        self, module: str, environment: Mapping[str, str], spec: bytes, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            process_group=0,  # Ctrl-C is for the gateway, which stops its servers in order; but no session of
            # its own: Linux shares out cores by session, and two servers would leave the gateway a third
            env=dict(environment),
        )
        self._ended, self._loop = asyncio.Event(), loop
        Thread(target=self._follow, args=(spec,), name=f"process {self.pid}", daemon=True).start()

    @classmethod
    async def start(cls, module: str, environment: Mapping[str, str], spec: bytes) -> "ChildProcess":
        """Start a module that reads this spec from its standard input."""
        return await asyncio.to_thread(cls, module, environment, spec, asyncio.get_running_loop())

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.returncode is not None

    def kill(self) -> None:
        """Send SIGKILL, which ends a stopped process too; nothing happens if it has ended."""
        self._process.kill()

    async def wait(self) -> int:
        """Wait for the end; return the exit code, or minus the signal that ended it."""
        await self._ended.wait()
        code: int = self._process.returncode
        return code

    def _follow(self, spec: bytes) -> None:
        """Hand over the spec and wait for the end; in a thread of its own."""
        assert self._process.stdin is not None
        with suppress(OSError):  # it ended before it read all
            self._process.stdin.write(spec)
            self._process.stdin.close()
        self._process.wait()
        with suppress(RuntimeError):  # the loop has ended before
            self._loop.call_soon_threadsafe(self._ended.set)
