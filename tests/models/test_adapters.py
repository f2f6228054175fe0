"""Adapters: each makes an elastic model of a plain module, and refuses what it cannot serve."""

from threading import Thread
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from toy import run_plan

from slimsched.models.adapters import (
    Exits,
    Family,
    Nested,
    SlicedAttention,
    Switched,
    exit_plans,
    frozen_copy,
    sliced_linear,
)
from slimsched.models.check import check_model
from slimsched.models.elastic import ModelError
from slimsched.models.spec import ModelSpec, TensorSpec, every_plan, uniform_plans

WIDTHS = ("0.5", "1.0")


class Slim(nn.Linear):
    """Reads the width in use from an attribute, as slimmable networks do."""

    width_mult = 1.0
    last = False

    def forward(self, x: Tensor) -> Tensor:
        out = self.out_features if self.last else int(self.out_features * self.width_mult)
        return F.linear(x, self.weight[:out, : x.shape[-1]], self.bias[:out])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = Slim(6, 8), Slim(8, 3)
        self.second.last = True

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(F.relu(self.first(x)))
        return y


def spec(
    *segments: tuple[str, ...], plans: Any = None, shape: tuple[int, ...] = (6,), **rest: Any
) -> ModelSpec:
    return ModelSpec(
        name="net",
        inputs=(TensorSpec(name="x", datatype="FP32", shape=shape),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(3,)),),
        segments=segments,
        plans=plans or every_plan(segments),
        **rest,
    )


CUT = [["first", F.relu], ["second"]]


def test_switched_gives_what_the_module_gives_at_that_width() -> None:
    net, x = Net(), torch.randn(4, 6)
    model = Switched(spec(WIDTHS), net)
    wide = net(x)
    for layer in net.modules():
        layer.width_mult = 0.5  # type: ignore[assignment]
    narrow = net(x)
    assert torch.equal(run_plan(model, (0,), (x,))[0], narrow)
    assert torch.equal(run_plan(model, (1,), (x,))[0], wide)


def test_switched_choices_share_their_parameters() -> None:
    model = Switched(spec(WIDTHS), Net())
    ours = [one.data_ptr() for one in model.module.parameters()]
    for choice in WIDTHS:
        assert [one.data_ptr() for one in model.at(choice).parameters()] == ours


def test_switched_cut_by_names_modules_and_functions_passes_the_check() -> None:
    net = Net()
    for cut in (
        CUT,
        [[net.first, nn.ReLU()], [net.second]],
        [lambda m, x: F.relu(m.first(x)), lambda m, x: m.second(x)],
    ):
        report = check_model(Switched(spec(WIDTHS, WIDTHS, follows_previous=True), net, cut=cut))
        assert report.problems == []
        assert report.compared == 2


def test_two_widths_run_at_once() -> None:
    model, x = Switched(spec(WIDTHS), Net()), torch.randn(32, 6)
    segments = {choice: model.segment(0, choice, None) for choice in WIDTHS}
    alone = {choice: segment((x,))[0] for choice, segment in segments.items()}
    wrong: list[bool] = []

    def run(choice: str) -> None:
        wrong.append(any(not torch.equal(segments[choice]((x,))[0], alone[choice]) for _ in range(200)))

    threads = [Thread(target=run, args=(choice,)) for choice in WIDTHS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [False, False]


def test_switched_takes_a_function_of_the_users_own() -> None:
    def set_size(net: Any, choice: str) -> None:
        net.first.width_mult = {"small": 0.5, "large": 1.0}[choice]

    model = Switched(spec(("small", "large")), Net(), set_width=set_size)
    assert check_model(model).problems == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Switched(spec(WIDTHS, WIDTHS), Net()), "not told where to cut"),
        (lambda: Switched(spec(WIDTHS, WIDTHS), Net(), cut=[["first"]]), "cut has 1 entries"),
        (lambda: Switched(spec(WIDTHS), Net(), cut=[["third"]]), "'third', which Net does not have"),
        (lambda: Switched(spec(WIDTHS), Net(), cut=[[nn.Linear(2, 2)]]), "not part of Net"),
        (lambda: Switched(spec(("small",)), Net()).segment(0, "small", None), "is no number"),
        (lambda: Family(spec(WIDTHS), {"0.5": Net()}), "give one member per choice"),
        (lambda: Family(spec(("a",), nested=True), {"a": Net()}), "share no weights"),
        (lambda: Family(spec(("a",), ("b",)), {}), "a family has one"),
        (lambda: Exits(spec(("exit", "on"), ("last",)), bodies=[Net()], heads=[Net()]), "2 segments"),
        (lambda: Exits(spec(("a",)), bodies=[Net()], heads=[]), "1 bodies and 0 heads"),
        (lambda: Exits(spec(WIDTHS, WIDTHS), bodies=[Net()] * 2, heads=[Net()] * 2), "two everywhere"),
        (
            lambda: Exits(spec(("exit", "on"), ("last",)), bodies=[Net()] * 2, heads=[Net()] * 2),
            "after an exit",
        ),
        (lambda: Nested(spec(("big",)), Net()).segment(0, "big", None), "no share in (0, 1]"),
        (
            lambda: Nested(spec(("1.0",)), nn.Sequential(nn.MultiheadAttention(4, 2))).segment(
                0, "1.0", None
            ),
            "cannot be sliced",
        ),
    ],
)
def test_what_an_adapter_cannot_serve_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ModelError) as error:
        make()
    assert message in str(error.value)


def test_a_family_runs_each_member_and_names_its_weights() -> None:
    small, large = nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3))
    model = Family(spec(("small", "large")), {"small": small, "large": large}, finish=lambda y: y * 2)
    x = torch.randn(2, 6)
    assert torch.equal(run_plan(model, (0,), (x,))[0], small(x) * 2)
    assert set(model.weights()) == {"small.weight", "small.bias", *(f"large.{n}" for n in large.state_dict())}
    assert check_model(model).problems == []


def test_choices_of_a_family_must_stand_smallest_first() -> None:
    members = {"a": nn.Sequential(nn.Linear(6, 9), nn.Linear(9, 3)), "b": nn.Linear(6, 3)}
    (problem,) = check_model(Family(spec(("a", "b")), members)).problems
    assert "choices are out of order: 'b' stands after 'a'" in problem.what


def test_exits_end_plans_early() -> None:
    bodies, heads = [nn.Linear(6, 6) for _ in range(3)], [nn.Linear(6, 3) for _ in range(3)]
    segments = (("exit", "on"), ("exit", "on"), ("last",))
    model = Exits(spec(*segments, plans=exit_plans(3)), bodies=bodies, heads=heads)
    x = torch.randn(2, 6)
    assert torch.equal(run_plan(model, (0,), (x,))[0], heads[0](bodies[0](x)))
    assert torch.equal(run_plan(model, (1, 0), (x,))[0], heads[1](bodies[1](bodies[0](x))))
    report = check_model(model)
    assert report.problems == []
    assert report.figures is not None
    assert report.figures.weights[0, 0] == 6 * 6 + 6 + 6 * 3 + 3
    assert "bodies.0.weight" in model.weights()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        y: Tensor = x + self.fc2(F.relu(self.fc1(x)))
        return y


def test_all_heads_of_a_sliced_attention_are_the_attention() -> None:
    attention, x = nn.MultiheadAttention(8, 4, batch_first=True).eval(), torch.randn(2, 5, 8)
    wanted = attention(x, x, x, need_weights=False)[0]
    assert torch.allclose(SlicedAttention(attention, 4)(x, x, x)[0], wanted, atol=1e-6)


def test_leading_heads_are_the_attention_with_the_others_switched_off() -> None:
    attention, x = nn.MultiheadAttention(8, 4, batch_first=True).eval(), torch.randn(2, 5, 8)
    narrow = SlicedAttention(attention, 1)(x, x, x)[0]
    with torch.no_grad():
        attention.out_proj.weight[:, 2:] = 0
    assert torch.allclose(narrow, attention(x, x, x, need_weights=False)[0], atol=1e-6)


def test_slices_are_views() -> None:
    linear = nn.Linear(8, 16)
    narrow = sliced_linear(linear, out=4, into=2)
    assert narrow.weight.data_ptr() == linear.weight.data_ptr()
    with torch.no_grad():
        linear.weight[0, 0] = 7.0
    assert narrow.weight[0, 0] == 7.0
    assert not frozen_copy(sliced_linear(linear, out=4)).weight.is_meta


@pytest.mark.parametrize(
    ("block", "pair"),
    [
        (Block, ("fc1", "fc2")),
        (lambda: nn.TransformerEncoderLayer(8, 4, 16, batch_first=True), ("linear1", "linear2")),
    ],
)
def test_nested_slices_heads_and_hidden_and_fits_in_every_combination(
    block: Any, pair: tuple[str, str]
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(block(), block(), nn.Flatten(), nn.Linear(24, 3)).eval()
    cut = [["0"], ["1", "2", "3"]]
    model = Nested(spec(WIDTHS, WIDTHS, shape=(3, 8), nested=True), net, cut=cut, hidden=[pair])
    report = check_model(model)
    assert report.problems == []
    assert report.figures is not None
    wide = 3 * (4 * 64 + 2 * 128) + 2 * 9 * 8
    assert report.figures.steps[0, 1, -2].macs == wide
    assert report.figures.steps[0, 0, -2].macs == wide // 2
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        assert torch.allclose(run_plan(model, (1, 1), (x,))[0], net(x), atol=1e-5)


def test_uniform_plans_of_switched_compare_with_the_whole() -> None:
    segments = (WIDTHS, WIDTHS)
    model = Switched(
        spec(*segments, plans=uniform_plans(segments), follows_previous=True),
        Net(),
        cut=[["first"], ["second"]],
    )
    problems = check_model(model).problems
    assert [problem.what for problem in problems] == ["the cut model gives other numbers than the whole one"]
