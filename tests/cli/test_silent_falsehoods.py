"""Nothing that a command prints may be false, or mislead by what it leaves out: one test for each case."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from command_line import refusal, slim
from served import Served
from slimsched.serving.api.client.client import Client, ServerRefusedError


def out(*words: str) -> str:
    done = slim(*words, seconds=120)
    assert done.code == 0, done.err
    return " ".join(done.out.split())


def test_1_energy_that_was_modelled_is_called_modelled() -> None:
    for scenario in ("paper", "laptop"):
        shown = out("simulate", "--scenario", scenario, "--seconds", "0.5")
        assert "energy modelled" in shown
        assert "energy measured" not in shown


def test_2_the_pareto_set_of_a_model_has_its_own_arithmetic(tmp_path: Path) -> None:
    slim("model", "new", str(tmp_path / "mine"))
    slim("model", "check", str(tmp_path / "mine"))
    slim("model", "evaluate", str(tmp_path / "mine"), "--agreement", "--examples", "8", seconds=120)
    mine = json.loads(out("model", "pareto", str(tmp_path / "mine"), "--json"))
    shipped = json.loads(out("model", "pareto", "--json"))
    assert {one["cost"] for one in mine}.isdisjoint(one["cost"] for one in shipped)
    assert slim("model", "pareto", "--bits", "mine").code == 2


def test_3_times_without_a_header_are_not_read_as_counts(tmp_path: Path) -> None:
    for text in ("0.0\n0.5\n1.25\n9.75\n", "100\n101\n103\n104\n"):
        (tmp_path / "times.csv").write_text(text)
        said = refusal("simulate", "--arrivals", str(tmp_path / "times.csv"))
        assert "arrival_s or count" in said
    (tmp_path / "counts.csv").write_text("5\n3\n8\n")
    assert "16 requests in 3 s" in out("simulate", "--arrivals", str(tmp_path / "counts.csv"))


def test_4_a_trace_is_played_as_recorded_unless_a_rate_is_given(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s\n" + "\n".join(str(0.002 * number) for number in range(1000)))
    row = json.loads(slim("simulate", "--arrivals", str(trace), "--json", seconds=120).out)
    assert row["arrived"] == 1000
    assert "as recorded (1,000 requests in 1.998 s)" in out("simulate", "--arrivals", str(trace))
    part = out("simulate", "--arrivals", str(trace), "--seconds", "0.5")
    assert "its first 0.5 s" in part
    assert "arrived 250" in part
    rescaled = out("simulate", "--arrivals", str(trace), "--rate", "2000", "--seconds", "1")
    assert "rescaled from 500.5 to 2,000 requests per second" in rescaled


def test_5_a_limit_on_energy_that_cannot_be_kept_is_refused_and_one_that_was_not_is_named(
    own_server: Callable[..., Served],
) -> None:
    images = np.random.default_rng(0).integers(0, 256, (1, 3, 32, 32), dtype=np.uint8)
    served = own_server()
    with Client(f"http://{served.http}") as client:
        with pytest.raises(ServerRefusedError, match="the cheapest plan takes"):
            client.classify(images, max_energy_mj=0.001)
        spent_mj = client.classify(images, plan="0.25").receipt["energy_mj"]
        full = client.classify(images, plan="1.0", max_energy_mj=spent_mj)
        assert full.receipt["energy_mj"] > spent_mj
        assert f"asked for at most {spent_mj:g} mJ" in full.receipt["missed"]
        assert "missed" not in client.classify(images, max_energy_mj=1e6).receipt
    assert served.stop() == 0


def test_6_an_accuracy_above_the_bound_comes_with_a_word_on_chance() -> None:
    shown = out("simulate", "--rate", "60", "--seconds", "5", "--router", "sed", "--seed", "1")
    accuracy, bound = _accuracy_and_bound("--rate", "60", "--seconds", "5", "--seed", "1")
    assert accuracy > bound, "choose a seed where it happens"
    assert "An accuracy above the bound is chance" in shown
    assert "points (95 %)" in shown


def test_7_metrics_and_the_first_lines_show_the_goal_that_is_followed(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    import http.client

    def ask(served: Served, method: str, path: str, body: str | None = None) -> str:
        connection = http.client.HTTPConnection(served.http, timeout=60)
        connection.request(method, path, body=body)
        return connection.getresponse().read().decode()

    options = ("--router", "goal[accuracy>=70, min energy]", "--state", str(tmp_path / "goal.json"))
    first = own_server(*options)
    ask(first, "PUT", "/v2/goal", json.dumps({"goal": "p99<=90ms"}))
    page = ask(first, "GET", "/metrics")
    assert "accuracy>=70" not in page
    assert 'goal="p99<=90ms, max accuracy"' in page
    assert "slim_goal_changes_total 1" in page
    assert first.stop() == 0
    second = own_server(*options)
    said = second.log.read_text()
    assert "goal: p99<=90ms, max accuracy" in said
    assert "accuracy>=70" not in said
    assert second.stop() == 0


def test_8_pictures_count_once_and_a_score_on_training_data_says_so(tmp_path: Path) -> None:
    from PIL import Image

    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (32, 32), colour).save(tmp_path / "pictures" / name / f"{number}.png")
    facts = json.loads(out("data", "check", "--data", str(tmp_path / "pictures"), "--json"))
    assert (facts["train_images"], facts["test_images"]) == (6, 0)

    from slimsched.models.data.dataset import scored_images

    scored = scored_images(tmp_path / "pictures", side=32, classes=("blue", "red"), run=None)
    assert "training images" in scored.description


def test_9_a_run_too_short_to_mean_anything_says_so() -> None:
    short = out("compare", "--routers", "sed,goal", "--seconds", "0.2", "--workers", "1")
    assert "too short to judge by" in short
    long = out("simulate", "--rate", "100", "--seconds", "30", "--router", "sed")
    assert "too short" not in long


def _accuracy_and_bound(*words: str) -> tuple[float, float]:
    row = json.loads(slim("simulate", *words, "--router", "sed", "--json", seconds=120).out)
    return row["accuracy"], row["bound_accuracy"]
