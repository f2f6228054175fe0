"""Measuring what is missing: seconds, in a process of its own, once; then it is known."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest
import torch

from cluster import MODEL, key
from folders import CODE, tiny_folder
from served import CONFIG, Served
from slimsched.core.config import SlimError
from slimsched.models.cache import cache_folder
from slimsched.serving.domain.cluster import Host
from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.profile import Profile
from slimsched.serving.domain.request import Batch, Key, Request, block_of
from slimsched.serving.live.batches import BatchRun
from slimsched.serving.live.server import LEAST_BATCHES, RealCosts, host_models
from slimsched.serving.measure.missing import MeasuredDevice, known_device, measured
from slimsched.serving.measure.quick import measured_part
from slimsched.serving.scenario.files import kept_profile, load_profile, read_model

HOST = Host(kind="cpu")
SLOW = CODE.replace("import torch\n", "import time, torch\n").replace(
    "return lambda tensors: (", "return lambda tensors: time.sleep(0.4 * len(tensors[0])) or ("
)


def measure(*models: str, budget_s: float = 1.0, seen: list[float] | None = None) -> MeasuredDevice:
    """Measure these models on one core of this machine; note when something was reported."""
    times_s = [] if seen is None else seen
    return asyncio.run(
        measured(
            models,
            HOST,
            "here-1-thread",
            progress=lambda done, of, text: times_s.append(monotonic()),
            budget_s=budget_s,
        )
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("SLIM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def shipped() -> tuple[ServedModel, Profile, list[float]]:
    """The shipped model, its profile measured in a few seconds, and when progress was reported."""
    seen: list[float] = []
    assert measure("slimresnet", budget_s=2.5, seen=seen)[:2] == ("here-1-thread", "")
    model = read_model("slimresnet")
    return model, load_profile("here-1-thread", model, Path()), seen


def test_a_folder_with_nothing_but_a_model_is_measured_once(tmp_path: Path, cache: Path) -> None:
    folder = str(tiny_folder(tmp_path / "mine", code=f"print('loading')\n{CODE}"))
    assert measure(folder)[:2] == ("here-1-thread", "")
    assert not {"figures.json", "profiles", "quality.npz"} & set(os.listdir(folder))
    model = read_model(folder, rated=False)
    assert model.figures.steps[1, 1, -2].macs == 16
    profile = load_profile("here-1-thread", model, tmp_path)
    assert profile.batches == (1, 2, 4, 8, 16, 32, 64)
    assert set(profile.latency_table_s) == set(model.keys.values())
    seen: list[float] = []
    measure(folder, seen=seen)
    assert not seen, "what is known is not measured again"


def test_the_shipped_model_is_measured_within_the_time_given(
    shipped: tuple[ServedModel, Profile, list[float]],
) -> None:
    _, profile, seen = shipped
    assert seen[-1] - seen[1] < 3.5
    wide, narrow = key(1, 1.0, 1.0), key(1, 0.25, 0.25)
    assert profile.latency_s(wide, 64) > 2 * profile.latency_s(narrow, 64)
    assert (
        profile.latency_s(narrow, 64) < profile.latency_s(key(1, 0.5, 0.25), 64) < profile.latency_s(wide, 64)
    )
    assert profile.instance_bytes[0, 3, 3] > 8 * profile.instance_bytes[0, 3, 0] > 0
    assert "modelled" in profile.energy_source or "RAPL" in profile.energy_source


@pytest.mark.slow
@pytest.mark.alone
def test_a_slow_model_ends_in_time_and_is_estimated_where_it_was_not_measured(
    tmp_path: Path, cache: Path
) -> None:
    folder, seen = str(tiny_folder(tmp_path / "slow", code=SLOW)), list[float]()
    measure(folder, seen=seen, budget_s=1.2)
    assert seen[-1] - seen[0] < 1.2 + 0.4 * 4 + 1.5, (
        "the figures take one run per choice, then come the cells"
    )
    model = read_model(folder, rated=False)
    profile = load_profile("here-1-thread", model, tmp_path)
    assert profile.batches[0] == 1
    assert 4 not in profile.batches, "a batch of four would take more than a second"
    narrow, wide = (model.keys[1, choice, -2] for choice in (0, 1))
    assert profile.latency_s(wide, 1) == pytest.approx(0.4, rel=0.2)
    assert profile.latency_s(narrow, 8) == pytest.approx(3.2, rel=0.2)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (CODE.replace("torch.manual_seed(0)", "raise ValueError('no such weights')"), "no such weights"),
        (CODE.replace("torch.manual_seed(0)", "raise SystemExit(7)"), "SystemExit: 7"),
        (CODE.replace("torch.manual_seed(0)", "import os; os.kill(os.getpid(), 9)"), "SIGKILL"),
    ],
    ids=["raises", "exits", "is killed"],
)
def test_a_model_that_fails_gives_one_line_that_names_it(
    tmp_path: Path, cache: Path, code: str, said: str
) -> None:
    folder = str(tiny_folder(tmp_path / "broken", code=code))
    with pytest.raises(SlimError) as caught:
        measure(folder)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert ";" in text, "it says what to do"


def test_what_was_measured_with_another_torch_is_measured_again(
    shipped: tuple[ServedModel, Profile, list[float]],
) -> None:
    def known() -> MeasuredDevice | None:
        return known_device(["slimresnet"], HOST, "here-1-thread", "auto")

    path = cache_folder("slimresnet") / "profiles" / "here-1-thread.json"
    raw = path.read_bytes()
    found = known()
    assert found is not None
    assert found[:2] == ("here-1-thread", "")
    assert known_device(["slimresnet"], Host(threads=2), "here-1-thread", "auto") is None
    assert known_device(["slimresnet"], Host(cores=(0,)), "here-1-thread", "auto") is None
    path.write_bytes(raw.replace(torch.__version__.encode(), b"1.0"))
    assert known() is None
    path.write_bytes(raw)


def test_cancelling_ends_the_process_that_measures(tmp_path: Path, cache: Path) -> None:
    folder = str(tiny_folder(tmp_path / "slow", code=SLOW))

    async def work() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(
            measured([folder], HOST, "here", progress=lambda done, of, text: begun.set(), budget_s=60.0)
        )
        await begun.wait()
        assert measuring()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(work())
    assert not measuring()


def measuring() -> list[str]:
    """The measuring processes that this one has started."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    lines = [
        Path(f"/proc/{child}/cmdline").read_text() for child in children if Path(f"/proc/{child}").exists()
    ]
    return [line for line in lines if "measure.quick" in line]


def test_of_a_nested_model_three_plans_are_measured_and_of_another_every_choice(tmp_path: Path) -> None:
    part = measured_part(MODEL)
    assert part.spec.plans == ((3,) * 4, (0,) * 4, (1,) * 4)
    folder = str(tiny_folder(tmp_path / "mine", top='plans = [["0.5", "1.0"], ["1.0", "0.5"]]'))
    (Path(folder) / "figures.json").write_bytes(figures_of(folder))
    assert set(measured_part(read_model(folder, rated=False)).spec.plans) == {(0, 1), (1, 0)}


def figures_of(folder: str) -> bytes:
    from slimsched.models.check import ROWS, count_figures
    from slimsched.models.elastic import PlanRun, example_inputs
    from slimsched.models.loading import load_model
    from slimsched.models.package import figures_json

    model = load_model(Path(folder))
    return figures_json(model.spec, count_figures(PlanRun(model), example_inputs(model, ROWS)))


def test_a_host_says_at_which_precision_open_models_run(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "mine", code=CODE)
    (folder / "figures.json").write_bytes(figures_of(str(folder)))
    model, cpu = read_model(str(folder), rated=False), torch.device("cpu")
    (hosted,) = host_models([model], cpu, "bf16", ["here"])
    assert {module.weight.dtype for module in hosted._elastic.modules()} == {torch.bfloat16}
    (folder / "run.toml").write_text('[cpu]\nprecision = "float16"\n')
    (hosted,) = host_models([model], cpu, "bf16", ["here"])
    assert {module.weight.dtype for module in hosted._elastic.modules()} == {torch.float16}, "its own wins"
    (own,) = host_models([MODEL], cpu, "fp32", ["here"])
    assert own._options == host_models([MODEL], cpu)[0]._options, "the shipped network chooses for itself"


def a_run(one: Key, size: int, busy_s: float, began_s: float) -> tuple[Batch, BatchRun]:
    blocks = (block_of(0, one, (Request(id=0, arrival_s=0.0, count=size),)),)
    batch = Batch(id=0, key=one, instance=0, blocks=blocks, size=size)
    return batch, BatchRun(
        done=list(blocks),
        failed=[],
        outputs=[],
        began_s=began_s,
        busy_s=busy_s,
        confidence=(),
        top=(),
        legs_s=(),
    )


def test_what_batches_cost_in_service_goes_into_the_kept_profile(
    shipped: tuple[ServedModel, Profile, list[float]],
) -> None:
    (model, profile, _), size = shipped, shipped[1].batches[-1]
    costs, often, seldom = RealCosts(), key(1, 1.0, 1.0), key(2, 1.0, 1.0)
    for one, count in ((often, LEAST_BATCHES), (seldom, LEAST_BATCHES - 1)):
        for _ in range(count):
            busy_s = 1.5 * profile.latency_s(one, size)
            costs.note(*a_run(one, size, busy_s, monotonic()), profile, is_last=True)
    overlapped = key(3, 1.0, 1.0)
    for _ in range(LEAST_BATCHES):
        costs.note(*a_run(overlapped, size, 1.0, monotonic()), profile, is_last=False)
    record = costs.merged(model, profile, 1.0)
    kept = kept_profile("here-1-thread", model)
    assert record is not None
    assert kept is not None
    changed = {
        (tuple(step), batch)
        for step, ours, theirs in zip(kept.steps, record.latency_s, kept.latency_s, strict=True)
        for batch, a, b in zip(kept.batches, ours[0], theirs[0], strict=True)
        if a != b
    }
    assert changed == {(often.step, size)}
    assert record.profile(model).latency_s(often, size) == pytest.approx(1.5 * profile.latency_s(often, size))
    assert msgspec.structs.replace(record, latency_s=kept.latency_s) == kept


@pytest.mark.slow
@pytest.mark.alone
def test_a_server_that_stops_cleanly_writes_down_what_batches_cost(
    shipped: tuple[ServedModel, Profile, list[float]],
    tmp_path: Path,
    own_server: Callable[..., Served],
    load_on: Callable[[str], AbstractContextManager[None]],
) -> None:
    before = kept_profile("here-1-thread", shipped[0])
    config = tmp_path / "here.toml"
    config.write_text(CONFIG.partition('[[server]]\nname = "two"')[0].replace("cpu-8-core", "here-1-thread"))
    served = own_server("--config", str(config))
    with load_on(served.http):
        give_up_s = monotonic() + 60
        while served.metric("slim_images_total") < 600:
            assert monotonic() < give_up_s
            sleep(0.1)
    assert served.stop() == 0
    after = kept_profile("here-1-thread", shipped[0])
    assert before is not None
    assert after is not None
    assert after.latency_s != before.latency_s
    assert after.device == before.device
