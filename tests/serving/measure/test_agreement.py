"""Agreement with the widest plan, measured on what comes in while it is served."""

import asyncio
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from folders import tiny_folder
from slimsched.core.config import ConfigError, DataError
from slimsched.serving.domain.model import ModelsChanged, RatedModel, ServedModel
from slimsched.serving.gateway.goal import check_reachable, parse_goal
from slimsched.serving.measure import agreement
from slimsched.serving.measure.agreement import AgreementMeter, Sample
from slimsched.serving.measure.quick import read_or_count
from slimsched.serving.scenario.catalogue import Catalogue
from slimsched.serving.scenario.files import CONFIGS, build_scenario, load_scenario, with_kept_quality

ROWS = np.random.default_rng(0).standard_normal((200, 4)).astype("f4")


def example(row: int) -> list[memoryview]:
    return [memoryview(ROWS[row].tobytes())]


@pytest.fixture
def unrated(tmp_path: Path) -> ServedModel:
    """A model that was only loaded and counted."""
    model, _ = read_or_count(str(tiny_folder(tmp_path / "tiny")))
    return model


def test_each_example_is_kept_once_and_a_burst_gives_few(
    unrated: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "EXAMPLES", 3)
    sample, times = Sample(unrated), count()
    for row in (0, 0, 0, 1):
        assert not sample.see(next(times), lambda row=row: example(row))
    assert not sample.see(3.001, lambda: example(2)), "it comes too soon after the last"
    assert not sample.see(5.0, lambda: [memoryview(b"a handle")]), "it lies in the memory of a GPU"
    assert sample.see(6.0, lambda: example(2))
    assert len(sample.examples) == 3


@pytest.mark.slow
@pytest.mark.alone  # the child gets only the time that nobody else wants
def test_what_came_in_is_measured_kept_and_used(
    unrated: ServedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "EXAMPLES", 60)
    meter, source = AgreementMeter([unrated]), {"source": unrated.folder}
    assert meter.state == {"tiny": f"{unrated.quality.name}: 60 of 60 examples are still missing; meanwhile "
                           "wider plans count as better"}  # fmt: skip
    for row in range(60):
        meter.sampler(0, float(row), lambda row=row: example(row))
    assert with_kept_quality(source) == source
    rated = asyncio.run(first_rating(meter))
    assert rated.accuracies[unrated.tree.index[unrated.spec.widest]] == 1.0
    assert 0.0 < min(rated.accuracies) < 1.0
    assert meter.state == {"tiny": rated.name}
    assert rated.name == "agreement with 1.0,1.0 on 60 examples that came in"

    laptop = build_scenario(scenario([source]), "before", CONFIGS)
    with pytest.raises(ConfigError, match="nobody has measured how accurate the plans of 'tiny' are"):
        check_reachable(parse_goal("accuracy>=90"), laptop.cluster.models)
    change = ModelsChanged(rated=(rated,))
    (model,) = Catalogue(laptop, "goal").change(laptop.cluster, change).models
    check_reachable(parse_goal("accuracy>=90"), [model])
    assert model.quality.by_plan.tolist() == list(rated.accuracies)

    kept = build_scenario(scenario([with_kept_quality(source)]), "the next start", CONFIGS)
    (model,) = kept.cluster.models
    assert model.quality.name == rated.name
    assert np.allclose(model.measured.by_plan, rated.accuracies)


@pytest.mark.slow
@pytest.mark.alone  # the child gets only the time that nobody else wants
def test_a_model_that_has_changed_since_it_was_loaded_is_not_compared(unrated: ServedModel) -> None:
    sample = Sample(unrated)
    sample.see(0.0, lambda: example(0))
    with Path(unrated.folder, "model.py").open("a") as code:
        code.write("# changed")
    with pytest.raises(DataError, match="tiny has changed since it was loaded"):
        asyncio.run(agreement._measured(sample))


def test_models_whose_plans_were_evaluated_are_left_alone() -> None:
    assert AgreementMeter(load_scenario("laptop").cluster.models).sampler is None


def scenario(models: list[dict[str, str]]) -> dict[str, object]:
    return {
        "name": "one",
        "accuracy": "if-measured",
        "load": {"rate_per_s": 1.0, "seconds": 1.0},
        "link": {"bandwidth_bytes_per_s": 2e9, "latency_s": 0.0002},
        "scheduler": {"batch_limit": 4, "vram_cap_bytes": 10**9},
        "server": [{"name": "core", "device": "jetson-agx-orin"}],
        "model": models,
    }


async def first_rating(meter: AgreementMeter) -> RatedModel:
    """Let the meter measure until it rates a model."""
    found: asyncio.Future[RatedModel] = asyncio.get_running_loop().create_future()

    async def rate(rated: RatedModel) -> None:
        found.set_result(rated)

    task = asyncio.create_task(meter.run(rate))
    try:
        return await asyncio.wait_for(found, 60)
    finally:
        task.cancel()
