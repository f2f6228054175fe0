"""Runs gangs: one process per machine, each in its machine's namespace, that compute and all-reduce in turn.

    python benchmarks/jobs_traffic/gang_server.py FOLDER

One server has torch imported and forks, because eight machines share two cores here and importing it anew in
each process would take longer than training. Computing is a sleep. The all-reduce is real (gloo over TCP) and
goes rack by rack, as the simulator's model does: a flat ring over four machines in two racks would send half
as much again through the uplinks.
"""

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from racks import Racks, address, enter

from slimsched.jobs.traces.clusters import host_names

FIRST_PORT = 20_000
PIECES = 4
LEAST_BYTES = 100_000
"""Pieces in which a large tensor crosses racks, and how small one may be."""


def serve(folder: Path) -> None:
    """Take requests until killed; each is handled in a process of its own."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "gangs"))
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run_gang(client, folder)
            os._exit(0)
        client.close()


def run_gang(client: socket.socket, folder: Path) -> None:
    """Start the processes of a gang and see them through, or stop them when Slurm stops the job."""
    request = json.loads(client.makefile().readline())
    machines = host_names(request["nodes"])
    started_s = time.time()
    ended, held = os.pipe()
    ranks = [_fork(rank, machines, request, folder) for rank in range(len(machines))]
    os.close(held)  # the pipe ends when the last rank has gone
    readable, _, _ = select.select([client, ended], [], [])
    stopped = client in readable
    for rank in ranks:
        if stopped:
            os.kill(rank, signal.SIGKILL)
    endings = [os.waitpid(rank, 0)[1] for rank in ranks]
    good = not any(endings)
    with (folder / "journal").open("a") as journal:
        line = {"job": request["job"], "machines": machines, "started_s": started_s, "ended_s": time.time()}
        journal.write(json.dumps({**line, "done": good}) + "\n")
    if not stopped:
        client.sendall(b"done" if good else b"failed")


def _fork(rank: int, machines: tuple[str, ...], request: dict[str, Any], folder: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        train(rank, machines, request, folder / f"{request['job']}.step")
    except BaseException as error:
        print(f"job {request['job']} rank {rank}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)


def train(rank: int, machines: tuple[str, ...], request: dict[str, Any], saved: Path) -> None:
    """Compute and all-reduce until the last step; the step is the checkpoint."""
    enter(machines[rank])
    if len(machines) > 1:
        store = f"tcp://{address(machines[0])}:{FIRST_PORT + int(request['job']) % 10_000}"
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=len(machines), timeout=timedelta(seconds=60)
        )
    exchange = Exchange(rank, machines) if len(machines) > 1 else None
    gradients = torch.zeros(request["gradient_bytes"] // 4)
    step = int(saved.read_text()) if saved.exists() else 0
    while step < request["steps"]:
        time.sleep(request["compute_s"])
        if exchange is not None:
            exchange.all_reduce(gradients)
        step += 1
        if rank == 0:
            partial = saved.with_suffix(".partial")
            partial.write_text(str(step))
            partial.replace(saved)


class Exchange:
    """An all-reduce rack by rack, in pieces, so that all kinds of links are in use at once.

    Each piece is summed up by the first machine of each rack, then between these, then sent to the others.
    While one piece crosses racks, the next is summed up and the last is sent on.
    """

    def __init__(self, rank: int, machines: tuple[str, ...]) -> None:
        rack_of = Racks().topology.rack_of_name
        by_rack: dict[int, list[int]] = {}
        for number, machine in enumerate(machines):
            by_rack.setdefault(rack_of[machine], []).append(number)
        # every process has to make every group, in the same order
        groups = [(ranks, dist.new_group(ranks)) for ranks in by_rack.values()]
        self._ranks, self._rack = next(group for group in groups if rank in group[0])
        self._leaders = dist.new_group([ranks[0] for ranks in by_rack.values()])
        self._first = self._ranks[0]
        self._leads = rank == self._first
        self._crosses = len(by_rack) > 1

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum a tensor over all machines."""
        if not self._crosses:
            dist.all_reduce(tensor, group=self._rack)
        elif len(self._ranks) == 1:
            for piece in self._pieces(tensor):
                dist.all_reduce(piece, group=self._leaders)
        else:
            self._all_reduce_in_both(self._pieces(tensor))

    def _all_reduce_in_both(self, pieces: Sequence[torch.Tensor]) -> None:
        first, rack = self._first, self._rack
        summed = [dist.reduce(piece, first, group=rack, async_op=True) for piece in pieces]
        if self._leads:
            crossed = []
            for work, piece in zip(summed, pieces, strict=True):
                work.wait()
                crossed.append(dist.all_reduce(piece, group=self._leaders, async_op=True))
            sent = []
            for work, piece in zip(crossed, pieces, strict=True):
                work.wait()
                sent.append(dist.broadcast(piece, first, group=rack, async_op=True))
        else:
            sent = [dist.broadcast(piece, first, group=rack, async_op=True) for piece in pieces]
        for work in [*summed, *sent]:
            work.wait()

    @staticmethod
    def _pieces(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        return tensor.tensor_split(PIECES if tensor.nbytes >= PIECES * LEAST_BYTES else 1)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
