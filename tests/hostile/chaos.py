"""Chaos: servers are killed, stopped and continued at random under load, and every request is counted.

    python tests/hostile/chaos.py --minutes 10
    python tests/hostile/chaos.py --minutes 3 --engine ray

Starts `slim serve`, finds the rate that it can hold, and sends 70 % of it in open loop. Some requests have a
deadline, some have none, and some clients leave before their answer. Meanwhile a random server gets SIGKILL,
or SIGSTOP and later SIGCONT, every few seconds, and other clients ask for pages that they never read. At the
end each request must have had exactly one answer, or one refusal that says why.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from served import Served, serve

IMAGES = 8
DEADLINE_S = 0.5
GRACE_S = 0.05
PATIENCE_S = 60.0
"""How long the last requests may take once the load ends."""

LAG_S = 0.005
STALL_S = 0.05
"""If a timer of this program is later than this, it stood still: what came meanwhile was seen late."""
IDLE_S = 20.0
"""Connections that have not been used for this long are closed: the server would close them soon."""

SLOW_READERS, PAGES = 16, 64
"""Clients that do not read, and how many pages each asks for at once."""

SERVER_NAMES = (b"live.server", b"ray::ServerActor")


@dataclass
class Outcome:
    """What became of one request."""

    deadline_s: float | None
    leaves_s: float | None  # when its client hangs up
    status: int = 0  # 0: no answer
    took_s: float = 0.0
    ended_s: float = 0.0
    reason: str = ""
    matches: bool = False  # the answer is to this request


@dataclass
class Count:
    """Everything that was seen."""

    outcomes: list[Outcome] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    memory_mib: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)  # how late this program's own timers were
    stalls: list[tuple[float, float]] = field(
        default_factory=list
    )  # from when to when this program stood still
    health_s: list[float] = field(default_factory=list)  # how long the gateway takes to say that it lives
    starved_s: list[float] = field(default_factory=list)  # of that, how long it waited for a core
    hung: int = 0

    @property
    def stayed(self) -> list[Outcome]:
        """The requests whose clients waited for the answer."""
        return [one for one in self.outcomes if one.leaves_s is None]

    @property
    def lost(self) -> list[Outcome]:
        """Requests with neither answer nor refusal, or with the answer to another one."""
        return [one for one in self.stayed if not one.status or (one.status == 200 and not one.matches)]

    @property
    def silent(self) -> list[Outcome]:
        """Refusals that do not say why."""
        return [one for one in self.stayed if one.status not in (0, 200) and not one.reason]

    def late(self, by_s: float = GRACE_S) -> list[Outcome]:
        """Requests that ended later than their deadline and `by_s`, own stalls not counted."""
        limited = [(one, one.deadline_s) for one in self.stayed if one.deadline_s is not None]
        return [one for one, due_s in limited if one.took_s > due_s + by_s + self._stood_still_s(one)]

    def _stood_still_s(self, one: Outcome) -> float:
        """For how long nobody here could have seen that a request had ended."""
        began_s, ended_s = one.ended_s - one.took_s, one.ended_s
        return sum(max(0.0, min(end, ended_s) - max(start, began_s)) for start, end in self.stalls)

    def text(self) -> str:
        """Return the result as a table."""
        third = max(1, len(self.memory_mib) // 3)
        memory = [self.memory_mib[n] for n in (0, third, 2 * third, -1)]
        late_s = sorted(one.took_s - (one.deadline_s or 0.0) for one in self.late(0.0))
        good_late = sum(one.status == 200 for one in self.late(0.0))
        rows = {
            "requests": len(self.outcomes),
            "clients that left": len(self.outcomes) - len(self.stayed),
            "answers and refusals": dict(sorted(Counter(one.status for one in self.stayed).items())),
            "neither, or the wrong answer": len(self.lost),
            "refusals without a reason": len(self.silent),
            "still open at the end": self.hung,
            "later than deadline + 50 ms": len(self.late()),
            "200 after its deadline": good_late,
            "latest after a deadline, ms": [round(1e3 * one, 1) for one in late_s[-5:]],
            "own timers late, ms (p99, max)": _worst_ms(self.lag_s),
            "own stalls, ms": [round(1e3 * (end - start)) for start, end in self.stalls],
            "health of the gateway, ms (p99, max)": _worst_ms(self.health_s),
            "the same without waits for a core, ms": _worst_ms(
                [
                    took_s - min(took_s, waited_s)
                    for took_s, waited_s in zip(self.health_s, self.starved_s, strict=True)
                ]
            ),
            "faults": dict(self.faults),
            "gateway MiB (start, 1/3, 2/3, end)": [round(one) for one in memory],
        }
        return "\n".join(f"{name}: {value}" for name, value in rows.items())


def _worst_ms(values_s: list[float]) -> list[float]:
    return [round(1e3 * float(np.percentile(values_s, q)), 1) for q in (99, 100)] if values_s else []


class Clients:
    """Sends requests over kept connections."""

    def __init__(self, address: str, seed: int) -> None:
        self._host, port = address.split(":")
        self._port = int(port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, float]] = []
        self._images = np.random.default_rng(seed).integers(0, 256, (IMAGES, 3, 32, 32), dtype=np.uint8)

    async def ask(self, number: int, outcome: Outcome) -> None:
        """Send one request and note what comes back."""
        began_s = monotonic()
        reader, writer = await self._connection()
        try:
            writer.write(self._request(number, outcome))
            async with asyncio.timeout(outcome.leaves_s):
                status, keep, body = await _response(reader)
        except TimeoutError:
            writer.close()
            return
        except (OSError, EOFError, ValueError) as error:
            outcome.reason = repr(error)
            writer.close()
            return
        outcome.status, outcome.ended_s = status, monotonic()
        outcome.took_s = outcome.ended_s - began_s
        outcome.matches = body.get("id") == str(number)
        outcome.reason = str(body.get("error", ""))
        if keep:
            self._idle.append((reader, writer, monotonic()))
        else:
            writer.close()

    async def all_up(self) -> bool:
        """Whether every server takes work now."""
        status, body = await self.get("/v2/health/ready")
        return status == 200 and set(dict(body["servers"]).values()) == {"up"}  # type: ignore[call-overload]

    async def get(self, path: str) -> tuple[int, dict[str, object]]:
        """Ask for a page."""
        reader, writer = await self._connection()
        writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        status, _, body = await _response(reader)
        writer.close()
        return status, body

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer, since_s = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing() and monotonic() - since_s < IDLE_S:
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port)

    def _request(self, number: int, outcome: Outcome) -> bytes:
        raw = self._images.tobytes()
        tensor = {"name": "images", "shape": list(self._images.shape), "datatype": "UINT8"}
        terms: dict[str, object] = {"plan": "0.5"}
        if outcome.deadline_s is not None:
            terms["deadline_ms"] = 1e3 * outcome.deadline_s
        asked = {
            "id": str(number),
            "parameters": terms,
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}],
            "outputs": [{"name": "classes"}],
        }
        text = json.dumps(asked).encode()
        head = (
            "POST /v2/models/slimresnet/infer HTTP/1.1\r\nhost: x\r\n"
            f"content-length: {len(text) + len(raw)}\r\n"
            f"inference-header-content-length: {len(text)}\r\n\r\n"
        )
        return head.encode() + text + raw


async def _response(reader: asyncio.StreamReader) -> tuple[int, bool, dict[str, object]]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length:")[2].split("\r\n")[0])
    body = await reader.readexactly(length)
    return int(head.split()[1]), "connection: close" not in head, json.loads(body)


async def capacity_per_s(address: str, seconds: float = 4.0) -> float:
    """Return the requests per second while 16 are always under way."""
    clients, done, end_s = Clients(address, 0), 0, monotonic() + seconds

    async def client(first: int) -> None:
        nonlocal done
        number = first
        while monotonic() < end_s:
            await clients.ask(number, outcome := Outcome(None, None))
            done += outcome.status == 200
            number += 16

    await asyncio.gather(*[client(number) for number in range(16)])
    return done / seconds


async def chaos(served: Served, seconds: float, rate_per_s: float, seed: int = 0) -> Count:
    """Send the load, do the harm, and return what was seen."""
    count, rng = Count(), random.Random(seed)
    clients, end_s = Clients(served.http, seed), monotonic() + seconds
    harm = [asyncio.create_task(_harm(served, clients, count, rng, end_s))]
    harm.append(asyncio.create_task(_watch(served, count)))
    harm.append(asyncio.create_task(_probe(served, clients, count)))
    harm += [asyncio.create_task(_read_nothing(served, count)) for _ in range(SLOW_READERS)]
    tasks: set[asyncio.Task[None]] = set()
    next_s = monotonic()
    while next_s < end_s:
        next_s += rng.expovariate(rate_per_s)
        await asyncio.sleep(max(0.0, next_s - monotonic()))
        kind = rng.random()
        outcome = Outcome(
            DEADLINE_S if kind < 0.5 else None, rng.uniform(0.0, 0.1) if rng.random() < 0.1 else None
        )
        count.outcomes.append(outcome)
        task = asyncio.create_task(clients.ask(len(count.outcomes), outcome))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await harm[0]
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=PATIENCE_S)
        count.hung = len(pending)
    for task in harm:
        task.cancel()
    return count


async def _harm(served: Served, clients: Clients, count: Count, rng: random.Random, end_s: float) -> None:
    """Kill servers, or stop and continue them, at random."""
    while (wait_s := rng.uniform(2.0, 10.0)) and monotonic() + wait_s < end_s - 1.0:
        await asyncio.sleep(wait_s)
        servers = server_pids(served)
        if not servers or (not await clients.all_up() and rng.random() < 0.8):
            continue  # most harm is done to a cluster that has recovered
        pid = rng.choice(servers)
        with suppress(ProcessLookupError):
            if rng.random() < 0.5:
                count.faults["killed"] += 1
                os.kill(pid, signal.SIGKILL)
            else:
                count.faults["stopped"] += 1
                os.kill(pid, signal.SIGSTOP)
                asyncio.get_running_loop().call_later(rng.uniform(0.2, 5.0), _continue, pid)


async def _read_nothing(served: Served, count: Count) -> None:
    """Ask for many pages and read none of them; come back when the server has hung up."""
    loop, (host, port) = asyncio.get_running_loop(), served.http.split(":")
    page = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
    while True:
        with socket.socket() as own:
            own.setblocking(False)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            count.faults["slow readers"] += 1
            with suppress(OSError, TimeoutError):
                await loop.sock_connect(own, (host, int(port)))
                while True:  # until the server hangs up
                    await asyncio.wait_for(loop.sock_sendall(own, PAGES * page), IDLE_S)
                    await asyncio.sleep(1.0)


def server_pids(served: Served) -> list[int]:
    """The processes of its servers: children of the gateway, or actors of the Ray that it started."""
    found, to_see = [], [served.process.pid]
    while to_see:
        pid = to_see.pop()
        with suppress(OSError):
            tasks = Path(f"/proc/{pid}/task").glob("*/children")
            to_see += [int(child) for path in tasks for child in path.read_text().split()]
            if any(name in Path(f"/proc/{pid}/cmdline").read_bytes() for name in SERVER_NAMES):
                found.append(pid)
    return found


def _continue(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


async def _watch(served: Served, count: Count) -> None:
    """Read the gateway's memory once per second, and how late this program's own timers are."""
    statm, next_s = Path(f"/proc/{served.process.pid}/statm"), monotonic()
    while True:
        began_s = monotonic()
        await asyncio.sleep(LAG_S)
        count.lag_s.append(monotonic() - began_s - LAG_S)
        if count.lag_s[-1] > STALL_S:
            count.stalls.append((began_s + LAG_S, monotonic()))
        if monotonic() >= next_s:
            next_s += 1.0
            count.memory_mib.append(int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20)


async def _probe(served: Served, clients: Clients, count: Count) -> None:
    """Ask the gateway ten times per second whether it lives, and how long it waited for a core meanwhile."""
    schedstat = Path(f"/proc/{served.process.pid}/schedstat")  # of its main thread
    while True:
        began_s, waited_s = monotonic(), _waited_s(schedstat)
        await clients.get("/v2/health/live")
        count.health_s.append(monotonic() - began_s)
        count.starved_s.append(_waited_s(schedstat) - waited_s)
        await asyncio.sleep(0.1)


def _waited_s(schedstat: Path) -> float:
    return int(schedstat.read_text().split()[1]) / 1e9


async def run_chaos(served: Served, seconds: float, load: float = 0.7, seed: int = 0) -> Count:
    """Find what the server holds, then run the chaos at this share of it."""
    return await chaos(served, seconds, load * await capacity_per_s(served.http), seed)


def main() -> None:
    """Run it by hand and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--load", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="local")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        served = serve(Path(folder), "--engine", options.engine)
        try:
            count = asyncio.run(run_chaos(served, 60 * options.minutes, options.load, options.seed))
        finally:
            code = served.stop()
        print(count.text())
        print(f"exit code {code}; tracebacks in the log: {served.log.read_text().count('Traceback')}")
    sys.exit(1 if count.lost or count.silent or count.hung or code else 0)


if __name__ == "__main__":
    main()
