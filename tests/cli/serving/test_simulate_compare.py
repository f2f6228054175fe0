"""The commands as a user types them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SLIM = [sys.executable, "-c", "from slimsched.cli.app import main; main()"]
COMPARE_KEYS = {
    "router",
    "accuracy",
    "latency_mean_s",
    "latency_sd_s",
    "latency_p50_s",
    "latency_p99_s",
    "energy_paper_j",
    "energy_j_per_request",
    "gpu_var",
    "completed",
    "slo_attainment",
    "dropped",
    "bound_share",
    "wall_s",
    "requests_per_wall_s",
}


def slim(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SLIM, *arguments], capture_output=True, text=True, timeout=120)


def refused(*arguments: str) -> str:
    """The one line a mistake is answered with."""
    done = slim(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_compare_prints_one_object_a_router() -> None:
    done = slim("compare", "--routers", "random,sed,lp", "--rate", "2000", "--seconds", "1", "--json")
    rows = json.loads(done.stdout)
    assert [row["router"] for row in rows] == ["random", "sed", "lp"]
    assert all(set(row) >= COMPARE_KEYS for row in rows)


def test_compare_over_seeds_gives_intervals() -> None:
    done = slim("compare", "--routers", "sed", "--rate", "1000", "--seconds", "1", "--seeds", "3", "--json")
    (row,) = json.loads(done.stdout)
    assert row["ci95"]["latency_mean_s"] > 0


def test_compare_takes_a_trace_of_arrivals(tmp_path: Path) -> None:
    trace = tmp_path / "times.csv"
    trace.write_text("arrival_s\n" + "\n".join(str(n * n / 1000) for n in range(500)))
    done = slim(
        "compare", "--routers", "jsq", "--arrivals", str(trace), "--rate", "800", "--seconds", "2", "--json"
    )
    (row,) = json.loads(done.stdout)
    assert 800 <= row["arrived"] <= 2400


def test_compare_draws_a_picture_and_a_table(tmp_path: Path) -> None:
    picture = tmp_path / "compare.png"
    done = slim(
        "compare", "--routers", "random,sed", "--rate", "500", "--seconds", "1", "--plot", str(picture)
    )
    assert "fluid bound" in done.stdout
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_server_dies_and_returns_and_no_request_is_lost() -> None:
    faults = ("--kill", "server-0@0.3s", "--restore", "server-0@0.8s")
    done = slim("simulate", "--rate", "2000", "--seconds", "1.5", *faults, "--drain", "--json")
    row = json.loads(done.stdout)
    assert row["completed"] == row["arrived"] > 2000
    assert (row["lost"], row["duplicates"], row["unfinished"]) == (0, 0, 0)


def test_a_log_can_be_replayed(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl.gz"
    assert slim("simulate", "--rate", "500", "--seconds", "0.5", "--log", str(log)).returncode == 0
    done = slim("replay", str(log))
    assert done.returncode == 0
    assert "no difference" in done.stdout


def test_a_log_that_was_tampered_with_shows_where(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    slim("simulate", "--rate", "500", "--seconds", "0.5", "--log", str(log))
    sent = re.compile(r"\[0,(\d),-1,\[")  # the key of a block: segment 0 at a choice
    whole = log.read_text()
    log.write_text(sent.sub(lambda found: f"[0,{(int(found[1]) + 1) % 4},-1,[", whole, count=1))
    assert log.read_text() != whole
    done = slim("replay", str(log))
    assert done.returncode == 1
    assert "first difference at entry" in done.stdout


def test_the_bound_is_printed_for_people_and_machines() -> None:
    assert "accuracy at most" in slim("bound", "--scenario", "edge-12").stdout
    free = json.loads(slim("bound", "--rate", "9000", "--json").stdout)
    tight = json.loads(slim("bound", "--rate", "9000", "--power", "200", "--json").stdout)
    assert tight["active_power_w"] <= 200.001 < free["active_power_w"]
    assert 0.5 < tight["accuracy"] < free["accuracy"] < 1.0


def test_users_bring_their_own_cluster(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    shipped = Path("configs/devices/t4.toml") if Path("configs").is_dir() else None
    text = (shipped or Path(__file__).parents[3] / "configs/devices/t4.toml").read_text()
    (tmp_path / "devices" / "mine.toml").write_text(text.replace('name = "t4"', 'name = "mine"'))
    config = tmp_path / "two.toml"
    config.write_text(
        'name = "two"\naccuracy = "paper"\n[load]\nrate_per_s = 100.0\nseconds = 1.0\n'
        "[link]\nbandwidth_bytes_per_s = 1e9\nlatency_s = 0.001\n"
        '[[server]]\nname = "a"\ndevice = "mine"\ncount = 2\n'
    )
    (row,) = json.loads(slim("compare", "--config", str(config), "--routers", "sed", "--json").stdout)
    assert row["completed"] > 50


GOOD = Path(__file__).parents[3] / "configs" / "paper.toml"


@pytest.mark.parametrize(
    ("find", "put", "says"),
    [
        (
            "vram_cap_bytes",
            "vram_limit_byte",
            "[scheduler]: unknown key 'vram_limit_byte'; known keys: batch_limit,",
        ),
        ("rate_per_s = 9200.0", "rate_per_s = -1.0", "rate_per_s is -1; give a number above 0"),
        (
            "rate_per_s = 9200.0",
            'rate_per_s = "fast"',
            "[load]: expected `float`, got `str` for key 'rate_per_s'",
        ),
        ("vram_cap_bytes = 5_000_000_000", "vram_cap_bytes = 1000", "raise the cap to at least that"),
        ('device = "gtx-980-ti"', 'device = "abacus"', "unknown device 'abacus'; known: cpu-core,"),
        ('name = "server-1"', 'name = "server-0"', "the name 'server-0' stands twice"),
        ("[load]", "[lode]", "unknown key 'lode'"),
        (
            'accuracy = "measured"',
            'accuracy = "guess"',
            "unknown accuracy table 'guess'; known: measured, paper",
        ),
        ("latency_s = 0.001", "latency_s = ", "is not valid TOML"),
    ],
)
def test_a_mistake_in_a_config_is_named_with_its_remedy(
    tmp_path: Path, find: str, put: str, says: str
) -> None:
    path = tmp_path / "mine.toml"
    text = GOOD.read_text()
    assert find in text
    path.write_text(text.replace(find, put, 1))
    assert says in refused("compare", "--config", str(path), "--json")


def test_an_impossible_device_is_refused(tmp_path: Path) -> None:
    (tmp_path / "devices").mkdir()
    text = (GOOD.parent / "devices" / "t4.toml").read_text()
    (tmp_path / "devices" / "t4.toml").write_text(text.replace("peak_flop_per_s = ", "peak_flop_per_s = -"))
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.read_text().replace('"gtx-980-ti"', '"t4"'))
    assert "peak_flop_per_s is -8.1e+12; give a number above 0" in refused("compare", "--config", str(path))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("compare", "--routers", "best"), "unknown router 'best'; known: random, round-robin,"),
        (("compare", "--rate", "-5"), "--rate is -5"),
        (
            ("compare", "--scenario", "moon"),
            "unknown scenario 'moon'; known: algorithm1, algorithm1-cpu, edge-12, fleet-64, h200, laptop,",
        ),
        (("compare", "--arrivals", "nowhere.csv"), "no arrival trace at nowhere.csv"),
        (("compare", "--config", "nowhere.toml"), "no configuration at nowhere.toml"),
        (("compare", "--seeds", "0"), "--seeds is 0; give a number from 1"),
        (("simulate", "--kill", "server-0"), "--kill 'server-0' is not understood; write it as server-0@10s"),
        (("simulate", "--kill", "server-7@1s"), "has no server 'server-7'; it has server-0,"),
        (("replay", "nowhere.jsonl"), "no event log at nowhere.jsonl"),
        (("bound", "--power", "-1"), "--power is -1"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_clear_line(arguments: tuple[str, ...], says: str) -> None:
    assert says in refused(*arguments)


@pytest.mark.parametrize("command", ["simulate", "compare", "bound", "replay"])
def test_help_has_an_example(command: str) -> None:
    done = slim(command, "--help")
    assert done.returncode == 0
    assert f"slim {command}" in done.stdout


def test_compare_runs_live_in_turn_on_real_servers(tmp_path: Path) -> None:
    live = ["compare", "--live", "--scenario", "laptop", "--rate", "40", "--seconds", "0.5"]
    done = slim(*live, "--routers", "sed,goal:sure=true", "--seeds", "2", "--json", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["router"] for row in rows] == ["sed", "goal:sure=true"]
    for row in rows:
        assert row["completed"] == row["arrived"] > 5
        assert row["lost"] == row["duplicates"] == 0
        assert row["device_s_per_request"] > 0
        assert row["ci95"]["latency_mean_s"] > 0
    assert (tmp_path / "run.json").exists()


def test_compare_says_what_cannot_run_live() -> None:
    assert "can only be simulated" in refused("compare", "--live", "--scenario", "paper", "--routers", "sed")
    assert "leave out" in refused("compare", "--live", "--scenario", "laptop", "--warmup", "1")
