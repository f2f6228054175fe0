"""The event log: what is written can be read back, up to a limit, or as far as it goes if its writer dies."""

import gzip
from pathlib import Path

import pytest
from msgspec import Struct

from slimsched.core.config import DataError
from slimsched.core.log import FLUSH_BYTES, Header, Log, LogWriter, Replayable, find_logs, log_path, replay


class Number(Struct, frozen=True, tag=True):
    value: int


class Sum(Struct, frozen=True, tag=True):
    value: int


class Adder:
    """A machine that answers with the sum so far."""

    def __init__(self) -> None:
        self.total = 0

    def handle(self, event: Number, *, now_s: float) -> list[Sum]:
        self.total += event.value
        return [Sum(self.total)]


HEADER = Header(slim="test", kind="serving", setting={})


def machine(name: str) -> Replayable:
    return Replayable(Adder(), Number)


def write(path: Path, count: int, *, limit_bytes: int | None = None) -> LogWriter:
    adder, writer = Adder(), LogWriter(path, HEADER, limit_bytes=limit_bytes)
    for number in range(count):
        event = Number(number)
        writer.observe(0.1 * number, "adder", event, adder.handle(event, now_s=0.1 * number))
    return writer


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.gz"])
def test_every_decision_is_compared_and_found_equal(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, 100).close()
    log = Log(tmp_path / name)
    found = replay(log.entries(), machine)
    assert (found.entries, found.commands, found.machines, found.difference) == (100, 100, 1, None)
    assert log.ending is not None
    assert (log.ending.ended, log.ending.entries) == ("closed", 100)


def test_a_decision_changed_by_hand_is_named(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 100).close()
    path.write_text(path.read_text().replace('"value":1275}', '"value":1276}'))  # 0 + 1 + … + 50
    difference = replay(Log(path).entries(), machine).difference
    assert difference is not None
    assert (difference.number, difference.machine, difference.now_s) == (51, "adder", 5.0)
    assert difference.logged == [{"type": "Sum", "value": 1276}]
    assert difference.replayed == [{"type": "Sum", "value": 1275}]
    assert difference.story.startswith("before it: Number at 4.500000 s (entry 46), Number at 4.600000 s")


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.gz"])
def test_a_log_whose_process_was_killed_is_replayed_as_far_as_it_was_flushed(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    writer = write(path, 40)
    writer.flush()
    writer.observe(9.0, "adder", Number(1), [Sum(0)])  # wrong, but it never reaches the disk
    written = path.read_bytes()
    copy = tmp_path / f"killed-{name}"
    copy.write_bytes(written)
    log = Log(copy)
    found = replay(log.entries(), machine)
    assert (found.entries, found.difference, log.ending) == (40, None, None)
    copy.write_bytes(written[:-7])  # in the middle of an entry
    shorter = replay(Log(copy).entries(), machine)
    assert shorter.difference is None
    assert shorter.entries < 40
    writer.close()


def test_at_its_size_limit_a_log_stops_says_so_and_what_it_has_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    writer = write(path, 40_000, limit_bytes=FLUSH_BYTES // 2)
    assert writer.is_full
    assert "limit" in writer.trouble
    writer.close()
    assert path.stat().st_size < 2 * FLUSH_BYTES
    log = Log(path)
    found = replay(log.entries(), machine)
    assert found.difference is None
    assert log.ending is not None
    assert (log.ending.ended, log.ending.entries) == ("full", found.entries)


def test_same_run_same_bytes(tmp_path: Path) -> None:
    for name in ("one.gz", "two.gz"):
        write(tmp_path / name, 1000).close()
    assert (tmp_path / "one.gz").read_bytes() == (tmp_path / "two.gz").read_bytes()


def test_a_run_folder_holds_the_logs_of_all_its_processes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for process in ("", "server-0", "server-0#2", "a/b"):
        write(log_path(run, process), 3).close()
    (run / "frames.jsonl.gz").write_bytes(gzip.compress(b"{}"))
    names = [path.name for path in find_logs(tmp_path)]
    assert names == [
        "events-a_b.jsonl.gz",
        "events-server-0#2.jsonl.gz",
        "events-server-0.jsonl.gz",
        "events.jsonl.gz",
    ]
    with pytest.raises(DataError, match="no event log in"):
        find_logs(Path(__file__).parent)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text("hello\n")
    with pytest.raises(DataError, match="is not an event log"):
        Log(tmp_path / "events.jsonl")
    with pytest.raises(DataError, match="cannot write a log"):
        LogWriter(tmp_path / "nowhere" / "events.jsonl", HEADER)
