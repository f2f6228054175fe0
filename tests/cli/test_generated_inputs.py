"""Generated bad inputs: scenario files, options, traces, clusters, model folders and logs, changed at random.

Each is run as a user would. It must end in time, either well or with one line that says what is wrong.
SLIM_FUZZ sets how many inputs are tried; without it a few of each kind are.
"""

import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import slim
from mutation import WORDS, changed, damaged, toml_text
from slimsched.serving.scenario.files import CONFIGS

EXAMPLES = int(os.environ.get("SLIM_FUZZ", "160"))
"""Inputs in all, over all kinds."""
LIMIT_S = 60.0
"""No generated input asks for more than a second of work; the rest is room for a busy machine."""

SMALL = ("--rate", "200", "--seconds", "0.05")
OUTPUTS = ("--log", "--plot", "--out")


def check(*words: str) -> None:
    """Run a command: it ends well, or says in one line what is wrong."""
    done = slim(*words, seconds=LIMIT_S)
    assert done.code in (0, 1, 2), done
    assert "Traceback" not in done.err + done.out
    if done.code and "Usage:" not in done.err:
        lines = [line for line in done.err.splitlines() if line.startswith("slim: ")]
        assert len(lines) == 1 or "difference" in done.out, done


Case = Callable[[Random, Path], None]

LIGHT = tomllib.loads(
    """
goal = "accuracy>=70, min energy"
[load]
arrivals = "bursty"
shape = {calm_s = 0.1, peak = 3.0}
deadline_s = 1.0
warmup_s = 0.0
urgent_share = 0.1
plan = "0.5"
[gateway]
step_s = 0.005
plan = "network"
early_drop = true
[scheduler]
batch_limit = 16
batch_limit_s = 0.1
vram_cap_bytes = 5_000_000_000
utilization_block = 0.9
idle_unload_s = 1.0
scale_trigger = 4
scale_cap = 2
resident = ["widest"]
[telemetry]
period_s = 0.1
delay_s = 0.01
detection_s = 0.1
[autoscale]
min = 1
max = 2
up_backlog_s = 0.1
start_s = 0.5
cooldown_s = 1.0
[[fault]]
server = "server-0"
at_s = 0.01
kind = "slow"
slowdown = 2.0
[[model]]
source = "slimresnet"
share = 1.0
weight = 1.0
goal = "accuracy>=70, p99<=80ms"
"""
)
"""Sections that the shipped scenarios do not all have."""


def scenario_file(rng: Random, folder: Path) -> None:
    raw = tomllib.loads((CONFIGS / f"{rng.choice(['paper', 'laptop'])}.toml").read_text())
    raw |= {name: LIGHT[name] for name in rng.sample(list(LIGHT), rng.randint(1, 4))}
    raw["load"] = {**raw["load"], "seconds": 0.05, "rate_per_s": 200.0}
    for _ in range(rng.randint(1, 3)):
        raw = changed(raw, rng)
    text = toml_text(raw).encode()
    path = folder / "mine.toml"
    path.write_bytes(damaged(text, rng) if rng.random() < 0.15 else text)
    router = rng.choice(["sed", "goal", "lp", "jsq", "drift-plus-penalty", "slackfit"])
    check(
        *rng.choice([("simulate", "--router", router, *SMALL), ("bound", "--rate", "200")]),
        "--config",
        str(path),
    )


def device_file(rng: Random, folder: Path) -> None:
    (folder / "devices").mkdir(exist_ok=True)
    raw = tomllib.loads((CONFIGS / "devices" / "t4.toml").read_text())
    (folder / "devices" / "mine.toml").write_text(toml_text(changed(raw, rng)))
    paper = (CONFIGS / "paper.toml").read_text().replace("gtx-980-ti", "mine")
    (folder / "mine.toml").write_text(paper)
    check("simulate", "--config", str(folder / "mine.toml"), *SMALL)


def profile_file(rng: Random, folder: Path) -> None:
    (folder / "profiles").mkdir(exist_ok=True)
    raw = json.loads((CONFIGS / "profiles" / "cpu-core.json").read_text())
    text = json.dumps(changed(raw, rng), default=str).encode()
    text = damaged(text, rng) if rng.random() < 0.3 else text
    (folder / "profiles" / "mine.json").write_bytes(text)
    paper = (CONFIGS / "paper.toml").read_text().replace("gtx-980-ti", "mine")
    (folder / "mine.toml").write_text(paper)
    check("simulate", "--config", str(folder / "mine.toml"), *SMALL)


def options(rng: Random, folder: Path) -> None:
    flags = [
        "--scenario",
        "--config",
        "--model",
        "--accuracy",
        "--arrivals",
        "--rate",
        "--seconds",
        "--deadline-ms",
        "--kill",
        "--restore",
        "--slow",
        "--leave",
        "--router",
        "--goal",
        "--seed",
        "--log",
        "--plot",
        "--out",
    ]
    words = [
        part for flag in rng.sample(flags, rng.randint(1, 2)) for part in (flag, _word(flag, rng, folder))
    ]
    given = [flag for flag in ("--rate", "--seconds") if flag not in words]
    small = [
        part
        for flag, value in zip(SMALL[::2], SMALL[1::2], strict=True)
        if flag in given
        for part in (flag, value)
    ]
    check("simulate", *small, *words)


def _word(flag: str, rng: Random, folder: Path) -> str:
    word = rng.choice(WORDS)
    if flag in OUTPUTS:
        return _output(rng, folder)
    forms = {
        "--kill": ["server-0@{}s", "{}@1s", "{}"],
        "--restore": ["server-0@{}s", "{}@1s"],
        "--slow": ["server-0@0.01sx{}", "server-0@{}sx2", "{}"],
        "--leave": ["server-0@{}", "{}"],
        "--router": [
            "{}",
            "lp:{}",
            "lp:margin={}",
            "goal:in_time={}",
            "goal[{}]",
            "goal[p99<={}ms]",
            "sharded:{}:sed",
            "sharded:2:{}",
            "drift-plus-penalty:v={}",
            "ppo:{}",
            "{}.py:Router",
            "goal:gains={}",
        ],
        "--goal": [
            "{}",
            "accuracy>={}",
            "p99<={}ms",
            "accuracy>=70, min {}",
            "accuracy>=70, p99<={}s, min energy",
        ],
        "--arrivals": ["{}", "{}.csv"],
        "--config": ["{}", "{}.toml"],
    }
    return rng.choice(forms.get(flag, ["{}"])).format(word)


def _output(rng: Random, folder: Path) -> str:
    """A path to write to: in the test's own folder, or where nothing can be written."""
    word = rng.choice([word for word in WORDS if "/" not in word and word != ".."])
    own = f"{folder}/out-{word}{rng.choice(['', '.png', '.foo', '.jsonl', '.jsonl.gz'])}"
    return rng.choice([own, own, str(folder), f"{folder}/no/{word}", "/dev/full", "/dev/null/x", "/proc/x"])


def compare_options(rng: Random, folder: Path) -> None:
    flags = [
        "--routers",
        "--goal",
        "--warmup",
        "--seed",
        "--seeds",
        "--workers",
        "--plot",
        "--engine",
        "--address",
    ]
    flag = rng.choice(flags)
    word = rng.choice(WORDS)
    word = _output(rng, folder) if flag in OUTPUTS else f"sed,{word}" if rng.random() < 0.3 else word
    given = {"--routers": "sed", "--workers": "1", flag: word}
    if flag == "--address":
        given["--engine"] = "local"
    check("compare", *SMALL, *(part for pair in given.items() for part in pair))


def request_trace(rng: Random, folder: Path) -> None:
    kinds = [
        "arrival_s\n" + "".join(f"{n * 0.01}\n" for n in range(50)),
        "count\n" + "".join(f"{n % 7}\n" for n in range(50)),
        "TIMESTAMP,x\n" + "".join(f"2026-01-01 00:00:{n:02}.5,1\n" for n in range(50)),
        "minute_1,minute_2,minute_3\n4,5,6\n7,8,9\n",
        "3 4 5 6\n",
    ]
    path = folder / f"trace.csv{rng.choice(['', '', '', '.gz', '.bz2'])}"
    path.write_bytes(damaged(rng.choice(kinds).encode(), rng))
    check("simulate", "--arrivals", str(path), *SMALL)


def job_inputs(rng: Random, folder: Path) -> None:
    rows = "".join(f"j{n},{n},{n % 9},{1 + n % 4}\n" for n in range(30))
    trace = f"job_id,arrival_s,service_sec,gpu_count\n{rows}".encode()
    cluster: dict[str, Any] = {"racks": 2, "machines_per_rack": 2, "gpus_per_machine": 4}
    if rng.random() < 0.4:
        cluster = {"machine": [{"name": f"m{n}", "rack": "r", "gpus": 4} for n in range(3)]}
    which = rng.randrange(3)
    (folder / "jobs.csv").write_bytes(damaged(trace, rng) if which == 0 else trace)
    wrong = changed(cluster, rng) if which == 1 else cluster
    (folder / "racks.toml").write_text(toml_text(wrong))
    words = ["--trace", str(folder / "jobs.csv"), "--cluster", str(folder / "racks.toml")]
    if which == 2:
        flags = [
            "--gpus",
            "--network",
            "--arrivals",
            "--load",
            "--seed",
            "--failures",
            "--quota",
            "--models",
            "--policy",
            "--plot",
            "--log",
            "--out",
            "--jobs",
        ]
        flag = rng.choice(flags)
        word = rng.choice(WORDS)
        forms = {
            "--quota": "a={}",
            "--policy": rng.choice(["{}", "manual:{}:{}", "srtf:{}", "dally:{}", "{}.py:X"]),
        }
        word = _output(rng, folder) if flag in OUTPUTS else forms.get(flag, "{}").replace("{}", word)
        words += [flag, word]
        words += ["--arrivals", "poisson"] if flag == "--load" else []
    check("jobs", "simulate", *words)


def model_folder(rng: Random, folder: Path) -> None:
    model = folder / "mine"
    if not model.exists():
        assert slim("model", "new", str(model)).code == 0
        (folder / "good.toml").write_bytes((model / "model.toml").read_bytes())
    text = (folder / "good.toml").read_bytes()
    raw = changed(tomllib.loads(text.decode()), rng)
    wrong = toml_text(raw).encode()
    (model / "model.toml").write_bytes(damaged(text, rng) if rng.random() < 0.3 else wrong)
    check("simulate", "--model", str(model), *SMALL)


def event_log(rng: Random, folder: Path) -> None:
    log = folder / "run.jsonl"
    if not (good := folder / "good.jsonl").exists():
        assert slim("simulate", "--rate", "100", "--seconds", "0.1", "--log", str(good)).code == 0
    lines = good.read_bytes().splitlines(keepends=True)
    at = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            rng.shuffle(lines)
        case 1:
            del lines[at]
        case 2:
            lines[at] = json.dumps(changed(json.loads(lines[at]), rng), default=str).encode() + b"\n"
        case _:
            lines = [damaged(b"".join(lines), rng)]
    log.write_bytes(b"".join(lines))
    check("replay", str(log))


KINDS: dict[Case, int] = {
    scenario_file: 8,
    options: 6,
    compare_options: 2,
    job_inputs: 5,
    request_trace: 2,
    device_file: 2,
    profile_file: 1,
    model_folder: 2,
    event_log: 2,
}
"""Kind of input → its share of all."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_generated_input_ends_well_or_with_one_line(
    kind: Case, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp(kind.__name__)
    monkeypatch.chdir(folder)
    examples = max(1, round(EXAMPLES * KINDS[kind] / sum(KINDS.values())))

    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.integers(0, 2**32))
    def run(seed: int) -> None:
        kind(Random(seed), folder)

    run()
