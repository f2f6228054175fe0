"""Fuzzing: a real `slim serve`, built with sanitizers, under attack by clients that send what nobody should.

    python tests/hostile/fuzz --seconds 60 --seed 1
    python tests/hostile/fuzz --only rapid-reset --only floods

Attackers take turns at all kinds of attack, from an address of their own. Beside them, clients that behave
check each of their answers, and the gateway's memory, descriptors, log and metrics are watched. Everything
that went wrong is printed; the exit code is 1 if there was anything. What was sent just before is kept in
build/fuzz/found. docs/reliability.md says what counts as wrong.
"""

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import h2_kinds
import http_kinds
import numpy as np
from attacker import Attacker, Board
from good_clients import Seen, Times, run_good
from sanitized import FOLDER, SANITIZERS, Server
from watch import GROWTH_MIB, MORE_DESCRIPTORS, Faults, Watch

KINDS: dict[str, Callable[[Attacker], None]] = {**http_kinds.KINDS, **h2_kinds.KINDS}
LATE_S, HEALTH_S = 5.0, 2.5
"""How long an answer and health may take: the sanitized server is slow, and attackers share its cores."""
WARM_S = 3.0
LEAST_TURN_S, MOST_TURN_S = 1.5, 4.0
REFUSED_SHARE, FEWEST_REFUSED = 0.02, 3
"""How many of the good clients' requests may be refused: an attack takes places that all share."""


def attack(
    number: int,
    names: Sequence[str],
    options: argparse.Namespace,
    board: Board,
    ports: tuple[int, int],
    until_s: float,
) -> None:
    """Be one attacker: take turns at the kinds, shuffled by the seed."""
    os.nice(5)
    turn_s = options.seconds * options.workers / len(names) / 2
    turn_s, turn = max(LEAST_TURN_S, min(MOST_TURN_S, turn_s)), 0
    while time.monotonic() < until_s:
        deck = list(names)
        random.Random(f"{options.seed}-round-{turn // len(names)}").shuffle(deck)
        for name in (deck * options.workers)[number :: options.workers][: len(deck)]:
            while not board.is_up.value and time.monotonic() < until_s:
                time.sleep(0.05)  # it is started again
            if time.monotonic() > until_s:
                break
            end_s = min(until_s, time.monotonic() + turn_s)
            board.kinds[number] = list(KINDS).index(name)
            rng = random.Random(f"{options.seed}-{name}-{number}-{turn}")
            one = Attacker(
                name, number, rng, *ports, end_s, board, FOLDER / "found", seen_alarms=board.alarms.value
            )
            while one.goes_on:
                try:
                    KINDS[name](one)
                except OSError:  # it was hung up on, or the server is started again
                    time.sleep(0.01)
            board.kinds[number] = -1
            turn += 1


def main() -> int:
    """Attack, and print what was seen."""
    options = read_options()
    names = options.only or [
        name
        for name in KINDS
        if not (options.http or options.grpc) or (options.http if name in http_kinds.KINDS else options.grpc)
    ]
    print(
        f"fuzz: seed {options.seed}, {options.seconds:g} s, {options.workers} attackers: {', '.join(names)}",
        flush=True,
    )
    shutil.rmtree(FOLDER / "found", ignore_errors=True)
    server = Server(is_sanitized=not options.plain)
    server.start()
    context = multiprocessing.get_context("fork")
    board = Board(
        alarms=context.Value("i", 0),
        kinds=context.Array("i", [-1] * options.workers),
        inputs=context.Array("l", [0] * len(KINDS)),
        statuses=context.Array("l", [0] * 600),
        is_up=context.Value("i", 1),
        faults=context.Queue(1000),
    )
    faults = Faults()

    def active() -> str:
        running = sorted({list(KINDS)[at] for at in board.kinds[:] if at >= 0})
        return " and ".join(running) or "nothing"

    watch = Watch(server, board, faults, active)
    ports, results = (server.http_port, server.grpc_port), context.Queue()
    until_s = time.monotonic() + WARM_S + options.seconds
    good = context.Process(target=run_good, args=(ports, board, (LATE_S, HEALTH_S), until_s, results))
    good.start()
    time.sleep(WARM_S)
    watch.settle()
    attackers = [
        context.Process(target=attack, args=(number, names, options, board, ports, until_s))
        for number in range(options.workers)
    ]
    for one in attackers:
        one.start()
    seen: Seen = {}
    times_s: Times = {}
    try:
        watch.run(until_s)
        with suppress(Exception):
            seen, times_s = results.get(timeout=40)
        for one in (*attackers, good):
            one.join(timeout=20)
        watch.settle_after()
    finally:
        for one in (*attackers, good):
            one.kill()
        watch.end()
    judge(seen, faults)
    report(options, board, watch, seen, times_s, faults)
    return 1 if faults.counts else 0


def judge(seen: Seen, faults: Faults) -> None:
    """Find clients that behave and were not served."""
    if not seen:
        faults.add("good clients", "they did not end")
    for name, said in seen.items():
        refused = said.total() - said["200"] - said["OK"]
        if refused > max(FEWEST_REFUSED, REFUSED_SHARE * said.total()) or not said.total():
            faults.add("refused", f"good clients of {name}: {refused} of {said.total()}: {dict(said)}")


def report(
    options: argparse.Namespace, board: Board, watch: Watch, seen: Seen, times_s: Times, faults: Faults
) -> None:
    """Print everything that was counted."""
    rows: dict[str, object] = {
        "server": "as installed" if options.plain else f"with -fsanitize={SANITIZERS}",
        "inputs by kind": {name: n for name, n in zip(KINDS, board.inputs[:], strict=True) if n},
        "HTTP answers to attackers": {status: n for status, n in enumerate(board.statuses[:]) if n},
    }
    for name, said in seen.items():
        p99, most = np.percentile(times_s[name] or [0.0], [99, 100])
        rows[f"good clients of {name}"] = f"{dict(said)}, p99 {1e3 * p99:.0f} ms, longest {1e3 * most:.0f} ms"
    memory, files = watch.memory_mib or [0.0], watch.descriptors or [0]
    rows["memory of the gateway, MiB"] = (
        f"{watch.start_mib:.0f} at the start, {max(memory):.0f} at most, {memory[-1]:.0f} at the end; "
        f"it may grow by {GROWTH_MIB}"
    )
    rows["descriptors"] = (
        f"{watch.start_descriptors} at the start, {max(files)} at most, {files[-1]} afterwards; "
        f"{MORE_DESCRIPTORS} more are allowed"
    )
    rows["bounds in time"] = f"answers {LATE_S:g} s, health {HEALTH_S:g} s"
    for what, value in rows.items():
        print(f"{what}: {value}")
    for what, count in faults.counts.items():
        print(f"FAILED {what} ({count} times): {faults.examples[what]}")
    if faults.counts:
        print(f"what was sent just before: {FOLDER / 'found'}; the server's log: {FOLDER / 'serve.log'}")
    print(f"seed {options.seed}: {'FAILED' if faults.counts else 'nothing went wrong'}", flush=True)


def read_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--http", action="store_true", help="only attacks on HTTP")
    parser.add_argument("--grpc", action="store_true", help="only attacks on gRPC")
    parser.add_argument(
        "--only", action="append", choices=list(KINDS), help="only this kind; may be repeated"
    )
    parser.add_argument("--workers", type=int, default=2, help="attackers at the same time")
    parser.add_argument(
        "--plain", action="store_true", help="attack the lines as they are built, without sanitizers"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
