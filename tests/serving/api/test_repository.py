"""Models are loaded, replaced and unloaded while requests are served; Triton's clients work unchanged."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from urllib.request import urlopen

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from served import CONFIG, Served
from slimsched.core.config import ConfigError
from slimsched.serving.api.client.client import Client
from stamped import stamped_folder

ROWS = 3
CLIENTS = {"http": triton_http, "grpc": triton_grpc}


class Triton:
    """One of Triton's clients, used alike."""

    def __init__(self, served: Served, protocol: str) -> None:
        self.module = CLIENTS[protocol]
        self.protocol = protocol
        self.client = self.module.InferenceServerClient(served.http if protocol == "http" else served.grpc)

    def ask(self, model: str, value: float = 1.0) -> tuple[str, list[list[float]]]:
        """The version that answered, and its answers."""
        values = np.full((ROWS, 4), value, dtype=np.float32)
        tensor = self.module.InferInput("x", list(values.shape), "FP32")
        tensor.set_data_from_numpy(values)
        result = self.client.infer(model, [tensor])
        response = result.get_response()
        version = response["model_version"] if isinstance(response, dict) else response.model_version
        return version, result.as_numpy("y").tolist()

    def states(self) -> dict[tuple[str, str], str]:
        """State by name and version."""
        index = self.client.get_model_repository_index()
        if self.protocol == "http":
            return {(one["name"], one["version"]): one["state"] for one in index}
        return {(one.name, one.version): one.state for one in index.models}


def start(own_server: Callable[..., Served], tmp_path: Path, *options: str) -> tuple[Served, Path]:
    """Serve 'cats' of a repository that also has two versions of 'dogs'."""
    repository = tmp_path / "repository"
    stamped_folder(repository / "cats", stamp=3.0)
    stamped_folder(repository / "dogs" / "1", name="dogs", version="1", stamp=51.0)
    (tmp_path / "one.toml").write_text(CONFIG + f'[[model]]\nsource = "{repository / "cats"}"\n')
    config = ("--config", str(tmp_path / "one.toml"))
    return own_server(*config, "--model-repository", str(repository), *options), repository


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritons_clients_list_load_and_unload(
    own_server: Callable[..., Served], tmp_path: Path, protocol: str
) -> None:
    served, repository = start(own_server, tmp_path)
    triton = Triton(served, protocol)
    assert triton.states() == {("cats", "1"): "READY", ("dogs", "1"): "UNAVAILABLE"}
    assert not triton.client.is_model_ready("dogs")
    with pytest.raises(InferenceServerException, match="unknown model 'dogs'"):
        triton.ask("dogs")
    assert Client(f"http://{served.http}").metadata()["name"] == "cats", "the server's only model"

    triton.client.load_model("dogs")
    assert triton.client.is_model_ready("dogs")
    with pytest.raises(ConfigError, match="this server has cats and dogs: say which model to ask"):
        Client(f"http://{served.http}").metadata()
    assert triton.states() == {("cats", "1"): "READY", ("dogs", "1"): "READY"}
    assert triton.ask("dogs", 2.0) == ("1", [[51.0, 51.0, 8.0]] * ROWS)
    assert triton.ask("cats") == ("1", [[3.0, 3.0, 4.0]] * ROWS)
    for page, words in (("/metrics", 'model="dogs"'), ("/openapi.json", "/v2/models/dogs/infer")):
        assert words in urlopen(f"http://{served.http}{page}").read().decode()

    stamped_folder(repository / "dogs" / "10", name="dogs", version="10", stamp=60.0)
    triton.client.load_model("dogs")
    assert triton.ask("dogs") == ("10", [[60.0, 60.0, 4.0]] * ROWS)
    assert triton.states()["dogs", "1"] == "UNAVAILABLE"

    triton.client.unload_model("dogs")
    assert not triton.client.is_model_ready("dogs")
    with pytest.raises(InferenceServerException, match="unknown model 'dogs'"):
        triton.ask("dogs")
    assert triton.states()["dogs", "10"] == "UNAVAILABLE"
    triton.client.load_model("dogs")
    assert triton.ask("dogs")[0] == "10"
    assert triton.ask("cats")[0] == "1"
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()


def test_a_hangup_loads_what_is_served_again(own_server: Callable[..., Served], tmp_path: Path) -> None:
    served, repository = start(own_server, tmp_path)
    triton = Triton(served, "http")
    stamped_folder(repository / "cats", stamp=4.0)
    served.process.send_signal(signal.SIGHUP)
    give_up_s = time.monotonic() + 60
    while triton.ask("cats")[1] != [[4.0, 4.0, 4.0]] * ROWS:
        assert time.monotonic() < give_up_s, served.log.read_text()
    (repository / "cats" / "model.toml").write_text("nonsense")
    served.process.send_signal(signal.SIGHUP)
    while "model 'cats' stays as it is" not in served.log.read_text():
        assert time.monotonic() < give_up_s, served.log.read_text()
    assert triton.ask("cats")[1] == [[4.0, 4.0, 4.0]] * ROWS
    assert served.stop() == 0


@pytest.mark.parametrize("fronts", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_a_new_version_takes_over_under_load_and_the_run_can_be_replayed(
    own_server: Callable[..., Served], tmp_path: Path, fronts: str
) -> None:
    served, repository = start(own_server, tmp_path, "--log", str(tmp_path / "logs"), "--fronts", fronts)
    triton = Triton(served, "http")
    triton.client.load_model("dogs")
    stamps = {("cats", "1"): 3.0, ("dogs", "1"): 51.0, ("dogs", "2"): 52.0}
    enough = Event()

    def traffic(model: str, protocol: str) -> list[str]:
        mine, versions = Triton(served, protocol), []
        while not enough.is_set():
            version, rows = mine.ask(model, float(len(versions)))
            stamp = stamps[model, version]
            assert rows == [[stamp, stamp, 4.0 * len(versions)]] * ROWS, "no answer is a mixture"
            versions.append(version)
        return versions

    with ThreadPoolExecutor(6) as pool:
        kinds = [("dogs", "http"), ("dogs", "grpc"), ("dogs", "http"), ("cats", "http"), ("cats", "grpc")]
        running = [pool.submit(traffic, *kind) for kind in kinds]
        try:
            time.sleep(1.0)
            stamped_folder(repository / "dogs" / "2", name="dogs", version="2", stamp=52.0)
            triton.client.load_model("dogs")
            time.sleep(1.0)
        finally:
            enough.set()
        ended = [future.result(timeout=60) for future in running]
    for (model, _), versions in zip(kinds, ended, strict=True):
        if model == "dogs":
            assert versions == sorted(versions), "once the new version answers, the old one does not"
            assert set(versions) == {"1", "2"}
        assert len(versions) > 5
    triton.client.unload_model("dogs")
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()
    command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", "replay"]
    replayed = subprocess.run([*command, str(tmp_path / "logs")], capture_output=True, text=True, check=False)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "all are equal" in replayed.stdout


def test_a_model_that_cannot_be_loaded_gives_one_clear_error_and_others_go_on(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    served, repository = start(own_server, tmp_path)
    triton = Triton(served, "http")

    def fails(name: str, *words: str) -> None:
        with pytest.raises(InferenceServerException) as caught:
            triton.client.load_model(name)
        assert all(word in str(caught.value) for word in words), str(caught.value)
        assert triton.ask("cats")[1] == [[3.0, 3.0, 4.0]] * ROWS

    stamped_folder(repository / "raises", stamp=1.0, broken="raise KeyError('no such layer')")
    fails("raises", "raises", "no such layer", "model.py, line")
    stamped_folder(repository / "leaves", stamp=1.0, broken="raise SystemExit(3)")
    fails("leaves", "tried to end the server")
    bad_plan = stamped_folder(repository / "badplan", stamp=1.0) / "model.toml"
    bad_plan.write_text('plans = [["small", "huge"]]\n' + bad_plan.read_text())
    fails("badplan", "no choice 'huge'")
    other = stamped_folder(repository / "rows", stamp=1.0)
    text = (other / "model.toml").read_text()
    (other / "model.toml").write_text('plans = [["small", "small"], ["large", "large"]]\n' + text)
    fails("rows", "other plans", "slim model evaluate")
    weightless = stamped_folder(repository / "weightless", stamp=1.0) / "model.toml"
    weightless.write_text('weights = "weights.safetensors"\n' + weightless.read_text())
    fails("weightless", "weights.safetensors")
    stamped_folder(repository / "shape", stamp=1.0, broken="pass")
    toml = repository / "shape" / "model.toml"
    toml.write_text(toml.read_text().replace("shape = [3]", "shape = [5]"))
    fails("shape", "its spec says [1, 5]")
    stamped_folder(repository / "misnamed", name="other", stamp=1.0)
    fails("misnamed", "rename one of them")
    fails("birds", "no model 'birds' in the model repository")
    for trick in ("..%2Frepository%2Fcats", "%2E%2E", "dogs%2F1"):
        fails(trick, "model")
    with pytest.raises(InferenceServerException, match="'config' is not accepted"):
        triton.client.load_model("dogs", config="{}")

    triton.client.load_model("dogs")
    assert triton.ask("dogs")[1] == [[51.0, 51.0, 4.0]] * ROWS
    assert served.stop() == 0
    assert "Traceback" not in served.log.read_text()


def test_a_server_that_dies_comes_back_with_the_current_models(
    own_server: Callable[..., Served], tmp_path: Path
) -> None:
    served, _ = start(own_server, tmp_path, "--log", str(tmp_path / "logs"))
    triton = Triton(served, "grpc")
    triton.client.load_model("dogs")
    triton.client.unload_model("cats")
    before = set(served.children())
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    give_up_s = time.monotonic() + 90
    while time.monotonic() < give_up_s:
        if triton.client.is_model_ready("dogs") and not before & set(served.children()):
            break
        time.sleep(0.2)
    assert triton.ask("dogs")[1] == [[51.0, 51.0, 4.0]] * ROWS
    assert served.stop() == 0
    command = [sys.executable, "-c", "from slimsched.cli.app import main; main()", "replay"]
    replayed = subprocess.run([*command, str(tmp_path / "logs")], capture_output=True, text=True, check=False)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


def test_without_a_repository_its_index_has_what_is_served_and_nothing_is_loaded(served: Served) -> None:
    for protocol in CLIENTS:
        triton = Triton(served, protocol)
        assert triton.states() == {("slimresnet", "1"): "READY"}
        for step in (triton.client.load_model, triton.client.unload_model):
            with pytest.raises(InferenceServerException, match="--model-repository"):
                step("slimresnet")
