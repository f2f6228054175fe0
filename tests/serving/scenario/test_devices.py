"""Devices that are shipped, and profiles that go by their own name."""

from pathlib import Path

import msgspec
import pytest

from command_line import slim
from slimsched.core.config import DataError, UnknownNameError
from slimsched.serving.scenario.files import CONFIGS, load_profile, shipped_model

NAMES = [path.stem for path in sorted((CONFIGS / "devices").glob("*.toml"))]
ASKED = {"a100", "h100", "h200", "l4", "t4", "rtx-4090", "jetson-agx-orin", "raspberry-pi-5", "epyc-7763"}


def test_common_devices_are_there() -> None:
    assert set(NAMES) >= ASKED


@pytest.mark.parametrize("name", NAMES)
def test_a_device_names_its_source_and_is_called_modelled(name: str) -> None:
    text = (CONFIGS / "devices" / f"{name}.toml").read_text()
    profile = load_profile(name, shipped_model(), CONFIGS)
    assert profile.name == name
    assert profile.source.startswith("modelled from public figures: ")
    assert profile.energy_source.startswith("modelled")
    assert "assumed" in text or "measured" in text, "it says what is not public"


def test_faster_devices_are_faster() -> None:
    model = shipped_model()
    keys = model.legs(model.spec.widest)
    order = ("raspberry-pi-5", "ryzen-7950x", "t4", "a100", "h100")
    times_s = [sum(load_profile(name, model, CONFIGS).latency_s(key, 64) for key in keys) for name in order]
    assert times_s == sorted(times_s, reverse=True)


def test_the_modelled_h200_is_near_the_measured_one() -> None:
    model = shipped_model()
    modelled, measured = (load_profile(name, model, CONFIGS) for name in ("h200", "h200-100"))
    for batch in (16, 128):
        ours, theirs = (
            sum(profile.latency_s(key, batch) for key in model.legs(model.spec.widest))
            for profile in (modelled, measured)
        )
        assert 0.5 < ours / theirs < 2.0


def test_a_profile_is_found_by_the_name_that_it_was_given(tmp_path: Path) -> None:
    record = msgspec.json.decode((CONFIGS / "profiles" / "cpu-core.json").read_bytes())
    (tmp_path / "any-file.json").write_bytes(msgspec.json.encode(record | {"name": "my-cpu"}))
    (tmp_path / "other.json").write_text("[]")
    scenario = (CONFIGS / "laptop.toml").read_text().replace('"cpu-core"', '"my-cpu"')
    (tmp_path / "mine.toml").write_text(scenario)
    done = slim("simulate", "--config", str(tmp_path / "mine.toml"), "--seconds", "0.5")
    assert done.code == 0, done.err
    with pytest.raises(UnknownNameError, match="my-gpu"):
        load_profile("my-gpu", shipped_model(), tmp_path)
    (tmp_path / "another.json").write_bytes(
        msgspec.json.encode(record | {"name": "my-gpu", "model": "someone-elses"})
    )
    with pytest.raises(DataError, match="has a profile of model 'someone-elses'"):
        load_profile("my-gpu", shipped_model(), tmp_path)
