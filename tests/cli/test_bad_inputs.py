"""Inputs that nobody should give: each is refused with one line that says what to do, at once."""

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import refusal, slim
from slimsched.serving.scenario.files import CONFIGS

SMALL = ("--rate", "200", "--seconds", "0.2")
LONG = "a" * 5000
PAPER = (CONFIGS / "paper.toml").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--rate", "inf"), "--rate is inf; give a number above 0"),
        (("--rate", "1e300"), "--rate is 1e+300"),
        (("--rate", "nan"), "--rate is nan"),
        (("--seconds", "inf"), "--seconds is inf"),
        (("--seconds", "1e300"), "--seconds is 1e+300"),
        (("--rate", "1e8", "--seconds", "1e6"), "lower the rate or shorten the run"),
        ((*SMALL, "--deadline-ms", "nan"), "--deadline-ms is nan"),
        ((*SMALL, "--seed", "-1"), "--seed is -1"),
        ((*SMALL, "--seed", "9" * 40), "--seed is 999"),
        ((*SMALL, "--router", ""), "unknown router ''"),
        ((*SMALL, "--router", "drift-plus-penalty:v=nan"), "v is 'nan'; give a number from 0"),
        ((*SMALL, "--router", "drift-plus-penalty:v=inf"), "v is 'inf'"),
        ((*SMALL, "--router", "goal:in_time=nan"), "in_time is 'nan'"),
        ((*SMALL, "--router", "goal:in_time=-9"), "in_time is '-9'; give a number from 0 to 1"),
        ((*SMALL, "--router", "lp:every_s=0"), "every_s is '0'"),
        ((*SMALL, "--router", "sharded:size=0"), "size is '0'"),
        ((*SMALL, "--router", "ppo-efficient:/etc/passwd"), "nothing takes '/etc/passwd'"),
        ((*SMALL, "--router", "ppo:/etc/passwd"), "cannot be read"),
        ((*SMALL, "--goal", "accuracy>=99"), "the best plan of slimresnet reaches"),
        ((*SMALL, "--router", "goal[accuracy>=99]"), "the best plan of slimresnet reaches"),
        ((*SMALL, "--goal", "p99<=0ms"), "give a time above 0, up to a day"),
        ((*SMALL, "--goal", f"p99<={'9' * 400}s"), "give a time above 0, up to a day"),
        ((*SMALL, "--kill", "server-0@1.2.3s"), "--kill 'server-0@1.2.3s'"),
        ((*SMALL, "--slow", "server-0@1sx0"), "slowdown is 0"),
        (("--scenario", LONG), "File name too long"),
        (("--config", f"{LONG}.toml"), "give a shorter name"),
        ((*SMALL, "--arrivals", f"{LONG}.csv"), "File name too long"),
        ((*SMALL, "--model", LONG), "File name too long"),
        ((*SMALL, "--accuracy", LONG), "give a text of at most 200 characters"),
        ((*SMALL, "--plot", "/nonexistent/run.png"), "there is no folder /nonexistent"),
        ((*SMALL, "--plot", "run.foo"), "end its name in .png"),
        ((*SMALL, "--plot", "/tmp"), "end its name in .png"),
        ((*SMALL, "--log", "/tmp"), "it is a folder; name a file"),
        ((*SMALL, "--log", "/dev/full"), "No space left on device"),
        ((*SMALL, "--out", "/etc/passwd"), "choose another folder"),
        ((*SMALL, "--out", "/proc/here"), "choose another folder"),
    ],
)
def test_simulate(words: tuple[str, ...], says: str) -> None:
    assert says in refusal("simulate", *words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("compare", "--routers", ""), "no router is named"),
        (("compare", "--routers", " , "), "no router is named"),
        (("compare", "--workers", "-1"), "--workers is -1"),
        (("compare", "--seeds", "0"), "--seeds is 0"),
        (("compare", "--warmup", "nan"), "--warmup is nan"),
        (("compare", "--routers", "sed,nope", *SMALL), "unknown router 'nope'"),
        (("demo", "--load", "nan"), "--load is nan"),
        (("demo", "--routers", ""), "no router is named"),
        (("validate", "--loads", "nan"), "--loads: [0] is nan"),
        (("validate", "--seconds", "inf"), "--seconds is inf"),
        (("bound", "--power", "nan"), "--power is nan"),
        (("serve", "--http-port", "99999"), "--http-port is 99999; give a number from 0 to 65535"),
        (("serve", "--grpc-port", "-1"), "--grpc-port is -1"),
        (("serve", "--log-limit", "nan"), "--log-limit is nan"),
        (("serve", "--goal", "accuracy>=99"), "the best plan of slimresnet reaches"),
        (("load", "--rate", "inf"), "--rate is inf"),
        (("load", "--images", "0"), "--images is 0"),
        (("client", "x.png", "--deadline-ms", "nan"), "--deadline-ms is nan"),
        (("profile", "--threads", "-1", "--out", "p.json"), "--threads is -1"),
        (("profile", "--threads", "0", "--out", "p.json"), "--threads is 0"),
        (("profile", "--repeats", "0", "--out", "p.json"), "--repeats is 0; give a number from 2"),
        (("profile", "--repeats", "-1", "--out", "p.json"), "--repeats is -1"),
        (("profile", "--batches", f"1,{'9' * 30}", "--out", "p.json"), "give a whole number of at most"),
        (("profile", "--out", "/tmp"), "end it in .json"),
        (("router", "train", "--weights", "1,1,nan,1"), "[2] is nan"),
        (("router", "train", "--updates", "-1"), "--updates is -1"),
        (("model", "tune", "nowhere", "--threads", "0"), "--threads is 0"),
        (("jobs", "simulate", "--failures", "inf"), "--failures is inf"),
        (("jobs", "simulate", "--failures", "nan"), "--failures is nan"),
        (("jobs", "simulate", "--failures", "1e9"), "--failures is 1e+09; give a number from 0 to 24"),
        (("jobs", "simulate", "--arrivals", "poisson", "--load", "inf"), "--load is inf"),
        (("jobs", "simulate", "--gpus", "9" * 30), "--gpus is 9999"),
        (("jobs", "simulate", "--jobs", "9" * 15), "--jobs is 9999"),
        (("jobs", "simulate", "--jobs", "20", "--seed", "-1"), "--seed is -1"),
        (("jobs", "simulate", "--jobs", "20", "--policy", "manual:nan:nan"), "machine_s is 'nan'"),
        (("jobs", "simulate", "--jobs", "20", "--policy", "manual:0:inf"), "rack_s is 'inf'"),
        (("jobs", "simulate", "--jobs", "20", "--plot", "/nonexistent/x.png"), "there is no folder"),
        (("jobs", "simulate", "--jobs", "20", "--log", "/tmp"), "it is a folder; name a file"),
        (("jobs", "simulate", "--jobs", "20", "--log", "/dev/full"), "No space left on device"),
        (("jobs", "simulate", "--jobs", "20", "--quota", "a=²"), "quota 'a=²' is not of the form"),
        (("jobs", "simulate", "--trace", LONG), "File name too long"),
        (("jobs", "simulate", "--cluster", LONG), "File name too long"),
        (("jobs", "simulate", "--jobs", "20", "--models", ","), "unknown training model ''"),
    ],
)
def test_other_commands(words: tuple[str, ...], says: str) -> None:
    assert says in refusal(*words)


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
@pytest.mark.parametrize(
    "words", [("profile", "--device", "cuda", "--out", "p.json"), ("model", "evaluate", "--device", "cuda")]
)
def test_a_gpu_that_is_not_there(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLIM_DATA", raising=False)
    refusal(*words, seconds=60)


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")
@pytest.mark.parametrize(
    "words", [("serve", "--http-port", "0", "--grpc-port", "0"), ("compare", "--live", "--routers", "sed")]
)
def test_servers_without_their_gpu_say_so_once_each(words: tuple[str, ...]) -> None:
    pytest.importorskip("torch")
    command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", *words]
    done = subprocess.run([*command, "--scenario", "h200"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "no CUDA device is visible; use host kind 'cpu'" in done.stderr
    assert "cannot start; see its message above" in done.stderr
    assert len(done.stderr.splitlines()) < 10


@pytest.mark.parametrize(
    ("find", "put", "says"),
    [
        ("latency_s = 0.001", "latency_s = nan", "[link]: latency_s is nan; give a number of at least 0"),
        ("bandwidth_bytes_per_s = 260e6", "bandwidth_bytes_per_s = nan", "bandwidth_bytes_per_s is nan"),
        ("bandwidth_bytes_per_s = 260e6", "bandwidth_bytes_per_s = inf", "bandwidth_bytes_per_s is inf"),
        ("deadline_s = 1.0", "deadline_s = nan", "[load]: deadline_s is nan; give a number above 0"),
        ("rate_per_s = 9200.0", "rate_per_s = inf", "rate_per_s is inf"),
        ("seconds = 45.7", "seconds = 1e300", "seconds is 1e+300; give a number of at most"),
        ("seconds = 45.7", f"seconds = {'9' * 400}", "number out of range for key 'seconds'"),
        ("seconds = 45.7", f"seconds = {'9' * 5000}", "is not valid TOML"),
        ("[scheduler]", "[scheduler]\nresident = [0.3]", "expected `str`, got `float`"),
        ("[scheduler]", '[scheduler]\nresident = ["0.3"]', "resident names '0.3', a choice that no model"),
        ("[scheduler]", "[telemetry]\nperiod_s = 0\n[scheduler]", "[telemetry]: period_s is 0"),
        ("[scheduler]", "[telemetry]\nperiod_s = -1\n[scheduler]", "[telemetry]: period_s is -1"),
        ("[scheduler]", "[telemetry]\nperiod_s = nan\n[scheduler]", "[telemetry]: period_s is nan"),
        ("[scheduler]", "[telemetry]\ndelay_s = nan\n[scheduler]", "[telemetry]: delay_s is nan"),
        ("step_s = 0.005", "step_s = 1e-300", "step_s is 1e-300; give 1e-05 or more"),
        ("step_s = 0.005", "event_s = -1e-6", "[gateway]: event_s is -1e-06; give a number of at least 0"),
        ("step_s = 0.005", "event_s = nan", "[gateway]: event_s is nan; give a number of at least 0"),
        ("step_s = 0.005", "request_s = -1", "[gateway]: request_s is -1; give a number of at least 0"),
        ("step_s = 0.005", "request_s = inf", "[gateway]: request_s is inf; give a number of at most"),
        ('name = "server-0"', 'name = "server-0"\ncount = 100000000', "count is 100000000"),
        ('name = "server-0"', 'name = "server-0"\ncount = 1000000', "more than 10,000 servers"),
        ('name = "server-0"', f'name = "{LONG}"', "give a text of at most 200 characters"),
        ('name = "server-0"', 'name = "gateway"', "no server can be called 'gateway'"),
        ('name = "server-0"', 'name = "server-0#2"', "no server can be called 'server-0#2'"),
        ('device = "gtx-980-ti"', f'device = "{LONG}"', "give a text of at most 200 characters"),
        ('arrivals = "poisson"', 'arrivals = "bursty"\nshape = {calm_s = 1e-12}', "calm_s is 1e-12"),
        ('arrivals = "poisson"', 'arrivals = "step"\nshape = {at = nan}', "shape[...] is one of"),
        ('name = "paper"', f"deep = {'[' * 100_000}{']' * 100_000}", "nested too deeply"),
        ('name = "paper"', 'name = "paper"\ngoal = "accuracy>=99"', "the best plan of slimresnet reaches"),
    ],
)
def test_a_scenario_file(tmp_path: Path, find: str, put: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    assert find in PAPER
    path.write_text(PAPER.replace(find, put, 1))
    assert says in refusal("simulate", "--config", str(path), *SMALL)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("times.csv", b"arrival_s\nnan\n1\n2\n", "not finite"),
        ("times.csv", b"arrival_s\n0\n1\ninf\n", "not finite"),
        ("times.csv", b"arrival_s\n0\n1e-320\n", "fewer than two different"),
        ("counts.csv", b"count\n0\n1\ninf\n", "counts must be from 0"),
        ("minutes.csv", b"minute_1,minute_2\n", "counts must be from 0"),
        ("counts.csv", b"count\n0\n1\nnan\n", "counts must be from 0"),
        ("times.csv.gz", gzip.compress(b"arrival_s\n" + b"1.5\n2.5\n" * 9999)[:-9], "end-of-stream"),
        ("times.csv.bz2", b"BZh9", "end-of-stream"),
        ("times.csv", b"arrival_s\n" + b"1" * 200_000 + b"\n2\n", "is not an arrival trace"),
        ("times.csv", b"\xff\xfe\x00", "cannot be read as text"),
    ],
)
def test_a_trace_of_requests(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert says in refusal("simulate", "--arrivals", str(tmp_path / name), *SMALL)


HELIOS = "job_id,arrival_s,service_sec,gpu_count\n"


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ("a,nan,5,1\n", "arrival_s is nan"),
        ("a,inf,5,1\nb,1,5,1\n", "arrival_s is inf"),
        ("a,0,inf,1\n", "service_s is inf"),
        ("a,0,-5,1\n", "service_s is -5; give a number of at least 0"),
        (f"a,0,5,{'9' * 30}\n", "gpus is too large"),
        (f"a,0,5,{'9' * 5000}\n", "line 2"),
        ("a,0,5,1\nb,1e17,5,1\n", "arrive over more than"),
        (f"{'a' * 200_000},0,5,1\n", "field larger than field limit"),
        ("a,0,5\n", "line 2"),
    ],
)
def test_a_trace_of_jobs(tmp_path: Path, rows: str, says: str) -> None:
    (tmp_path / "jobs.csv").write_text(HELIOS + rows)
    assert says in refusal("jobs", "simulate", "--trace", str(tmp_path / "jobs.csv"))


def test_a_trace_of_jobs_that_was_cut_off(tmp_path: Path) -> None:
    packed = gzip.compress((HELIOS + "".join(f"j{n},{n},5,1\n" for n in range(5000))).encode())
    (tmp_path / "jobs.csv.gz").write_bytes(packed[:-2000])
    assert "end-of-stream" in refusal("jobs", "simulate", "--trace", str(tmp_path / "jobs.csv.gz"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("racks = -1\nmachines_per_rack = 1\ngpus_per_machine = 1\n", "racks is -1"),
        ("racks = inf\nmachines_per_rack = 1\ngpus_per_machine = 1\n", "got `float` for key 'racks'"),
        ("racks = 100000000\nmachines_per_rack = 9\ngpus_per_machine = 1\n", "racks is 100000000"),
        ("racks = 1000000\nmachines_per_rack = 9\ngpus_per_machine = 1\n", "more than 100,000 machines"),
        (f"racks = {'[' * 5000}{']' * 5000}", "nested too deeply"),
        ('[[machine]]\nname = "a"\nrack = "r"\ngpus = 0\n', "machine[0].gpus is 0"),
        ("rack = 3\n", "unknown key 'rack'"),
    ],
)
def test_a_cluster_file(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.toml").write_text(text)
    assert says in refusal("jobs", "simulate", "--jobs", "20", "--cluster", str(tmp_path / "mine.toml"))


@pytest.mark.parametrize("words", [("simulate", *SMALL), ("jobs", "simulate", "--jobs", "50")])
def test_the_log_of_a_run_in_reverse(tmp_path: Path, words: tuple[str, ...]) -> None:
    log = tmp_path / "run.jsonl"
    assert slim(*words, "--log", str(log)).code == 0
    header, *entries, ending = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([header, *reversed(entries), ending]))
    done = slim("replay", str(log))
    assert done.code in (1, 2)
    assert "damaged or out of order" in done.err or "first difference" in done.out


def test_a_disk_that_is_full_behind_the_output() -> None:
    code = "from slimsched.cli.app import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "router", "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.splitlines()[0].startswith("slim: No space left on device; make room")
    assert "Traceback" not in done.stderr


def test_a_module_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    line = refusal("model", "new", str(tmp_path / "mine"))
    assert line == (
        "this command needs torch, which is not installed; "
        "install it with: pip install 'slim-scheduler[torch]'"
    )


def test_an_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slimsched.cli.serving.router.router_names", interrupted)
    assert slim("router", "list") == (130, "", "")
