"""Joined models: the plans of several models for one task, with each member's own results."""

from pathlib import Path

import numpy as np
import pytest
import torch
from folders import CODE, tiny_folder

from slimsched.kernel.errors import ConfigError
from slimsched.models.check import check_model
from slimsched.models.confidence import Confidences
from slimsched.models.figures_file import write_figures_file
from slimsched.models.package import load_model, read_figures, read_quality, read_spec
from slimsched.models.plan_run import PlanRun
from slimsched.models.quality import write_quality
from slimsched.models.shipped_models import shipped_folder
from slimsched.models.spec import ModelSpec
from slimsched.models.spec import Path as Plan
from slimsched.serving.execution.model_source import read_model

ONE_SEGMENT = '[[segment]]\nchoices = ["small", "large"]\n'
SHORT_CODE = """
import torch
from slimsched.models.elastic import ElasticModel

class Model(ElasticModel):
    def __init__(self, spec):
        self.spec = spec
        self.net = torch.nn.Linear(4, 2)

    def segment(self, index, choice, previous):
        scale = 1.0 if choice == "large" else 0.5
        return lambda tensors: (self.net(tensors[0]) * scale,)

    def prepare(self, raw):
        return (raw[0] + 1,)

    def finish(self, last):
        return (2 * last[0],)

    def confidence(self, last):
        return last[0].amax(dim=1)

def build(spec):
    torch.manual_seed(1)
    return Model(spec)
"""


def member(folder: Path, name: str, *, code: str = CODE, segments: str | None = None) -> Path:
    """Write a model that was checked."""
    made = tiny_folder(folder / name, code=code, **({} if segments is None else {"segments": segments}))
    toml = made / "model.toml"
    toml.write_text(toml.read_text().replace('name = "tiny"', f'name = "{name}"'))
    report = check_model(load_model(made))
    assert report.problems == []
    assert report.figures is not None
    write_figures_file(made / "figures.json", report.spec, report.figures)
    return made


def rated(folder: Path, correct: np.ndarray) -> None:
    write_quality(folder / "quality.npz", correct)


def join(folder: Path, *members: str) -> Path:
    made = folder / "both"
    made.mkdir()
    (made / "model.toml").write_text(f'name = "both"\nmembers = {list(members)}\n')
    return made


@pytest.fixture
def both(tmp_path: Path) -> Path:
    """A model of two segments and one of a single segment, joined."""
    member(tmp_path, "long")
    member(tmp_path, "short", code=SHORT_CODE, segments=ONE_SEGMENT)
    return join(tmp_path, "../long", "../short")


def names(spec: ModelSpec, plan: Plan) -> list[str]:
    return spec.text(plan).split(",")


def test_a_joined_model_has_every_plan_of_every_member(both: Path) -> None:
    spec = read_spec(both)
    assert sorted(spec.text(plan) for plan in spec.plans) == [
        "long-0.5,long-0.5",
        "long-0.5,long-1.0",
        "long-1.0,long-0.5",
        "long-1.0,long-1.0",
        "short-large",
        "short-small",
    ]


def test_a_joined_model_passes_the_check_and_answers_as_its_members_do(both: Path) -> None:
    model = load_model(both)
    assert check_model(model).problems == []
    inputs = (torch.randn(3, 4),)
    for part in ("long", "short"):
        alone = load_model(both.parent / part)
        theirs = dict(PlanRun(alone).outputs(inputs, alone.spec.plans))
        for plan, outputs in PlanRun(model).outputs(inputs, model.spec.plans):
            own = [name.removeprefix(f"{part}-") for name in names(model.spec, plan)]
            if len(own[0]) < len(names(model.spec, plan)[0]):
                assert torch.equal(outputs[0], theirs[alone.spec.path(",".join(own))][0])


def test_a_joined_model_is_sure_only_if_all_members_are(both: Path, tmp_path: Path) -> None:
    assert not load_model(both).is_confident
    member(tmp_path, "other", code=SHORT_CODE, segments=ONE_SEGMENT)
    (both / "model.toml").write_text('name = "both"\nmembers = ["../short", "../other"]\n')
    model = load_model(both)
    assert model.is_confident
    run = PlanRun(model)
    last = run.step((0,), (torch.randn(3, 4),))
    assert model.finish(last)[0].shape == (3, 2)
    sure = model.confidence(last)
    assert sure is not None
    assert torch.equal(sure, last[-1])


def test_figures_and_quality_are_those_of_the_members(both: Path) -> None:
    rng = np.random.default_rng(0)
    bits = {"long": rng.random((4, 40)) < 0.6, "short": rng.random((2, 40)) < 0.8}
    for name, correct in bits.items():
        rated(both.parent / name, correct)
    joined, quality = read_spec(both), read_quality(both)
    for name in bits:
        spec = read_spec(both.parent / name)
        own, figures = read_quality(both.parent / name), read_figures(both.parent / name)
        for plan in spec.plans:
            there = joined.path(",".join(f"{name}-{choice}" for choice in names(spec, plan)))
            assert quality.accuracy(there) == own.accuracy(plan)
            assert quality.is_correct(there, 7) == own.is_correct(plan, 7)
            assert read_figures(both).plan_macs(joined, there) == figures.plan_macs(spec, plan)


def test_a_member_that_was_not_evaluated_is_named(both: Path) -> None:
    rated(both.parent / "long", np.ones((4, 8), dtype=bool))
    with pytest.raises(ConfigError, match="member 'short' has no quality table; run slim model evaluate"):
        read_quality(both)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (["../long"], "has 1 member; join two or more"),
        (["../long", "../nothing"], "no member '../nothing': name a shipped model, or a folder beside"),
        (["../long", "../long"], "two members have the same name"),
        (["../long", "slimvit"], "'long' and 'slimvit' have different inputs; join models for the same task"),
        (["../long", "../both"], "member '../both' is joined itself; name its members instead"),
    ],
)
def test_models_that_cannot_be_joined_are_refused(both: Path, members: list[str], message: str) -> None:
    (both / "model.toml").write_text(f'name = "both"\nmembers = {members}\n')
    with pytest.raises(ConfigError) as caught:
        read_spec(both)
    assert message in str(caught.value)


def test_an_unknown_key_is_named_with_those_that_exist(both: Path) -> None:
    (both / "model.toml").write_text('name = "both"\nmembers = ["slimvit", "../long"]\nplans = "all"\n')
    with pytest.raises(
        ConfigError, match="unknown field `plans`; a folder that joins models has the keys name"
    ):
        read_spec(both)


def test_the_shipped_pair_knows_how_sure_plans_of_both_networks_are() -> None:
    pair, confidences = read_model("slimpair"), read_model("slimpair").measured.confidences
    assert isinstance(confidences, Confidences)
    plans = [pair.spec.text(pair.spec.plans[plan]) for plan in confidences.plans]
    assert {plan.partition("-")[0] for plan in plans} == {"slimresnet", "slimvit"}
    assert pair.spec.plans.index(pair.spec.widest) in confidences.plans
    for name in ("slimresnet", "slimvit"):
        alone = read_model(name)
        assert pair.measured.accuracy(pair.spec.path(f"{name}-0.5")) == alone.measured.accuracy(
            alone.spec.path("0.5")
        )


def test_the_pair_is_a_folder_with_nothing_typed_twice() -> None:
    folder = shipped_folder("slimpair")
    assert folder is not None
    assert not (folder / "quality.npz").exists()
    assert not (folder / "figures.json").exists()
