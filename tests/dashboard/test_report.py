"""Run folders and their reports, made with the commands that a user runs."""

import gzip
import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from two_model_run import SLIM, slim

from served import CONFIG
from slimsched import dashboard
from slimsched.dashboard.pictures import RAMPS, shades, wrapped

VOID = {"meta", "br", "img", "input", "link", "hr", "path", "use", "rect"}


class Page(HTMLParser):
    """Collects what a page contains and whether it loads anything from outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href") and re.match(r"(https?:)?//", value or ""):
                self.outside.append(value or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "one"
    faults = ("--kill", "server-0@0.3s", "--restore", "server-0@1.1s")
    slim("simulate", "--rate", "1500", "--seconds", "2", *faults, "--seed", "7", "--out", str(folder))
    return folder


def test_a_run_folder_holds_config_seed_log_figures_and_arrays(simulated: Path) -> None:
    about = json.loads((simulated / "run.json").read_text())
    assert about["seed"] == 7
    assert about["config"]["load"]["rate_per_s"] == 1500
    assert [fault["kind"] for fault in about["config"]["fault"]] == ["kill", "restore"]
    (row,) = json.loads((simulated / "summary.json").read_text())
    with np.load(simulated / "arrays.npz", allow_pickle=False) as arrays:
        assert len(arrays["0/latency_s"]) == row["completed"]
        bound = arrays["bound/accuracy"]
        assert (np.diff(bound) >= -1e-9).all(), "more energy is never worse"
        assert abs(bound[-1] - row["bound_accuracy"]) < 0.002
    assert "no difference" in slim("replay", str(simulated / "events.jsonl.gz"))


def test_the_same_seed_leaves_the_same_bytes(simulated: Path, tmp_path: Path) -> None:
    faults = ("--kill", "server-0@0.3s", "--restore", "server-0@1.1s")
    slim("simulate", "--rate", "1500", "--seconds", "2", *faults, "--seed", "7", "--out", str(tmp_path))
    for name in ("run.json", "events.jsonl.gz", "frames.jsonl.gz"):
        assert (tmp_path / name).read_bytes() == (simulated / name).read_bytes(), name


def test_an_event_log_becomes_the_dashboard_with_the_run_in_it(simulated: Path, tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    slim("report", str(simulated / "events.jsonl.gz"), "--out", str(page))
    found = re.search(r'id="frames">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    frames = json.loads(found[1].replace("<\\/", "</"))
    recorded = gzip.decompress((simulated / "frames.jsonl.gz").read_bytes()).splitlines()
    assert len(frames) == pytest.approx(len(recorded), abs=2)
    (row,) = json.loads((simulated / "summary.json").read_text())
    assert frames[-1]["answered"] == pytest.approx(row["completed"], rel=0.02)
    assert frames[-1]["accuracy"] == pytest.approx(json.loads(recorded[-1])["accuracy"], abs=0.02)


def test_the_log_of_a_single_server_has_no_frames(tmp_path: Path, simulated: Path) -> None:
    lines = gzip.decompress((simulated / "events.jsonl.gz").read_bytes()).splitlines(keepends=True)
    alone = [line for line in lines if b'"gateway"' not in line[:60]]
    (tmp_path / "events.jsonl").write_bytes(lines[0] + b"".join(alone))
    done = subprocess.run(
        [*SLIM, "report", str(tmp_path / "events.jsonl")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "is not the log of a gateway" in done.stderr


def test_a_report_holds_every_figure_and_needs_no_network(simulated: Path) -> None:
    written = json.loads(slim("report", str(simulated), "--json"))["written"]
    page = Page(Path(written[0]).read_text())
    assert set(page.ids) >= {
        "figures",
        "models",
        "latency",
        "front",
        "choices",
        "queues",
        "servers",
        "faults",
        "config",
    }
    assert page.outside == []
    assert not re.search(r"url\([\"']?https?:|@import", Path(written[0]).read_text())
    text = " ".join(page.words)
    assert "0.3 s: server-0 is killed" in text
    assert "Seed 7" in text
    assert "fluid bound" in text
    assert len(page.ids) == len(set(page.ids)), "drawings do not share ids"
    for path in written[1:]:
        assert Path(path).read_bytes()[:4] == b"\x89PNG"


def test_a_comparison_has_a_row_and_an_interval_for_each_router(tmp_path: Path) -> None:
    options = ("--routers", "sed,lp", "--rate", "500", "--seconds", "0.5", "--seeds", "2")
    slim("compare", *options, "--out", str(tmp_path / "run"))
    slim("report", str(tmp_path / "run"), "--out", str(tmp_path / "all.html"))
    text = (tmp_path / "all.html").read_text()
    assert text.count('<th scope="row">') == 3, "two routers, and the model"
    assert '<span class="interval">± ' in text
    assert {path.name for path in tmp_path.glob("*.png")} == {
        f"all-{name}.png" for name in ("latency", "front", "choices", "queues")
    }


def test_a_second_run_in_the_same_folder_leaves_no_report_of_the_first(tmp_path: Path) -> None:
    run = ("simulate", "--rate", "300", "--seconds", "0.3", "--out", str(tmp_path))
    slim(*run)
    slim("report", str(tmp_path))
    (tmp_path / "notes.png").write_bytes(b"the reader's own")
    assert (tmp_path / "report.html").exists()
    slim(*run)
    assert not [*tmp_path.glob("report*")]
    assert (tmp_path / "notes.png").exists()


def test_choices_have_the_colours_of_the_page() -> None:
    page = (Path(dashboard.__file__).parent / "page" / "dashboard.css").read_text()
    light = page.partition("prefers-color-scheme: dark")[0]
    for number, ramp in enumerate(RAMPS):
        names = [f"--{stop}{number}" for stop in ("narrow", "middle", "wide")]
        assert [f"{name}: {colour}" in light for name, colour in zip(names, ramp, strict=True)] == [True] * 3
    assert shades(3) == list(RAMPS[0])


def test_long_names_break_between_their_parts() -> None:
    assert wrapped("manual:machine_s=43200:rack_s=86400", 26) == "manual:machine_s=43200:\nrack_s=86400"
    assert wrapped("goal[accuracy>=75, p99<=60ms]", 20) == "goal[accuracy>=75,\np99<=60ms]"
    assert wrapped("sed", 2) == "sed"


@pytest.mark.slow
def test_a_demo_of_real_servers_has_its_report_too(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(CONFIG)
    short = (
        "--config",
        str(tmp_path / "two.toml"),
        "--seconds",
        "1",
        "--arrivals",
        "poisson",
        "--load",
        "0.02",
        "--json",
    )
    slim("demo", *short, "--out", str(tmp_path / "run"))
    slim("report", str(tmp_path / "run"))
    text = (tmp_path / "run" / "report.html").read_text()
    page = Page(text)
    assert set(page.ids) >= {"figures", "latency", "front", "choices", "queues", "config"}
    assert page.outside == []
    assert text.count('<th scope="row">') == 3, "two routers, and the model"
    assert "energy modelled" in text or "energy measured" in text


def test_a_report_of_several_models_shows_the_figures_of_each(several: Path) -> None:
    (row,) = json.loads((several / "summary.json").read_text())
    outlines = json.loads((several / "run.json").read_text())["models"]
    assert [model["name"] for model in outlines] == ["slimresnet", "sorter"]
    assert outlines[1]["segments"] == [["small", "medium", "large"]] * 2
    assert len(outlines[0]["plans"]) == 256
    assert "small,large" in outlines[1]["plans"]
    text = " ".join(Page((several / "report.html").read_text()).words)
    for name, figures in row["models"].items():
        assert f"{name} {figures['completed']:,} {100 * figures['accuracy']:.2f} %" in text
    assert "small, medium, large" in text


def test_a_report_needs_nothing_but_its_folder(several: Path, tmp_path: Path) -> None:
    for name in ("run.json", "summary.json", "arrays.npz", "frames.jsonl.gz"):
        (tmp_path / name).write_bytes((several / name).read_bytes())
    (tmp_path / "run.json").write_text((several / "run.json").read_text().replace(str(several), "/gone"))
    slim("report", str(tmp_path))
    text = (tmp_path / "report.html").read_text()
    assert "lp: sorter" in text, "each model has a panel of its choices"


def test_training_jobs_have_their_own_pictures(tmp_path: Path) -> None:
    options = ("--jobs", "60", "--cluster", "racks-64", "--policies", "tiresias,dally")
    slim("jobs", "compare", *options, "--out", str(tmp_path / "both"))
    slim("jobs", "simulate", *options[:4], "--out", str(tmp_path / "one"))
    for name in ("both", "one"):
        slim("report", str(tmp_path / name))
        page = Page((tmp_path / name / "report.html").read_text())
        assert set(page.ids) >= {"figures", "completion", "makespan", "tiers", "occupancy", "config"}


def test_a_folder_without_a_run_is_refused_with_the_way_to_get_one(tmp_path: Path) -> None:
    done = subprocess.run([*SLIM, "report", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("slim: no run at")
    assert "slim simulate --out" in done.stderr


def test_a_damaged_run_is_refused(simulated: Path, tmp_path: Path) -> None:
    for path in simulated.iterdir():
        if path.suffix in (".json", ".npz"):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "arrays.npz").write_bytes(b"not an archive")
    done = subprocess.run([*SLIM, "report", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "is damaged" in done.stderr
