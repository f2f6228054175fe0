"""`check_model` finds the mistakes that people make, and says what they are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from folders import CODE, skeleton_folder, tiny_folder
from slimsched.models.check import Problem, Report, check_model
from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.loading import load_model
from slimsched.models.spec import ModelSpec, TensorSpec, every_plan


def checked(folder: Path) -> Report:
    return check_model(load_model(folder))


def only(report: Report) -> Problem:
    assert len(report.problems) == 1, report.problems
    return report.problems[0]


def test_the_skeleton_is_sound_and_its_figures_are_right(tmp_path: Path) -> None:
    report = checked(skeleton_folder(tmp_path / "mine"))
    assert report.problems == []
    assert report.compared == 1
    figures = report.figures
    assert figures is not None
    assert figures.steps[0, 2, -1].macs == 16 * 64
    assert figures.steps[1, 1, 0].macs == 16 * 32 + 32 * 4
    assert figures.weights[0, 0] == 16 * 16 + 16
    assert figures.weights[1, 2] == 64 * 64 + 64 + 4 * 64 + 4
    assert figures.output[0, 1] == 32
    assert figures.output[1, 0] == 4
    assert figures.workspace[0, 2] >= 64
    assert report.handed_bytes[0,] == 16 * 4


def test_the_tiny_model_is_sound(tmp_path: Path) -> None:
    assert checked(tiny_folder(tmp_path)).problems == []


@pytest.mark.parametrize(
    ("wrong", "right", "where", "what"),
    [
        (
            "return (torch.nn.functional.pad(y, (0, 8 - y.shape[1])),)",
            "return (y,)",
            "segment 0",
            "follows_previous = false",
        ),
        (
            "return (torch.nn.functional.pad",
            "return torch.relu(y)\n                (torch.pad",
            "0.5",
            "returned Tensor",
        ),
        (
            "(self.second(tensors[0]) * scale,)",
            "tensors[0].missing",
            "0.5",
            "model.py, line 20: AttributeError",
        ),
        (
            "self.second(tensors[0])",
            "self.second(tensors[0]).mean(0)",
            "plan 0.5,0.5",
            "the spec says (3, 2)",
        ),
        (
            "self.second(tensors[0])",
            "self.second(tensors[0]).double()",
            "plan 0.5,0.5",
            "the spec says (3, 2) torch.float32",
        ),
        ("(self.second(tensors[0]) * scale,)", "(tensors[0], tensors[0])", "plan 0.5,0.5", "gives 2 outputs"),
        ("* scale", "/ 0", "plan 0.5,0.5", "holds NaN or infinity"),
        (
            "self.second(tensors[0])",
            "(self.second(tensors[0]) - tensors[0].mean())",
            "segment 1 at '0.5' after '0.5'",
            "depends on the other rows of the batch",
        ),
        ("* scale", "* torch.rand(())", "segment 1", "when it runs again"),
        ("scale = float(choice)", "self.s = float(choice)", "segment 1", "after other choices were loaded"),
        (
            "if index == 0:",
            "if index == 0 and 1 // (choice != '0.5'):",
            "model 'tiny'",
            "line 13: ZeroDivisionError",
        ),
        ("return run", "return 3", "model 'tiny'", "returned int"),
    ],
)
def test_mistakes_are_found(tmp_path: Path, wrong: str, right: str, where: str, what: str) -> None:
    assert wrong in CODE
    code = CODE.replace(wrong, right)
    code = code.replace("* scale", "* self.s") if "self.s =" in right else code
    problem = checked(tiny_folder(tmp_path, code=code)).problems[0]
    assert where in problem.where
    assert what in problem.what
    assert problem.remedy


def test_shapes_that_depend_on_the_choice_must_be_declared(tmp_path: Path) -> None:
    code = CODE.replace("torch.nn.functional.pad(y, (0, 8 - y.shape[1]))", "y").replace(
        "self.second(tensors[0])", "tensors[0] @ self.second.weight.T[: tensors[0].shape[1]]"
    )
    problem = only(checked(tiny_folder(tmp_path / "silent", code=code)))
    assert problem.where == "segment 0"
    assert "(N, 4) float32 on 0.5 and (N, 8) float32 on 1.0" in problem.what
    assert "follows_previous = true" in problem.remedy
    declared = tiny_folder(tmp_path / "declared", top="follows_previous = true", code=code)
    assert checked(declared).problems == []


def test_a_needless_declaration_is_only_a_hint(tmp_path: Path) -> None:
    report = checked(tiny_folder(tmp_path, top="follows_previous = true"))
    assert report.problems == []
    assert "follows_previous = false is enough" in report.hints[0]


def test_a_width_that_all_choices_share_is_found_even_where_shapes_break(tmp_path: Path) -> None:
    model = Shared()
    report = check_model(model)
    assert "every plan runs alone, but not after other choices were loaded" in report.problems[0].what
    assert "adapters.Switched" in report.problems[0].remedy


class Shared(ElasticModel):
    """Keeps the width in use in one place, as most elastic networks do."""

    def __init__(self) -> None:
        widths = ("0.5", "1.0")
        self.spec = ModelSpec(
            name="shared",
            inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
            outputs=(TensorSpec(name="y", datatype="FP32", shape=(2,)),),
            segments=(widths, widths),
            plans=((0, 0), (1, 1)),
            follows_previous=True,
        )
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 2)])
        self.used = [8, 8]

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        self.used[index] = int(8 * float(choice)) + index  # the second layer takes one more than it is given
        self.used[1] -= index
        weight = self.layers[index].weight

        def run(tensors: Tensors) -> Tensors:
            sliced: Any = weight[: self.used[0]] if index == 0 else weight[:, : int(8 * float(choice))]
            return (tensors[0] @ sliced.T,)

        return run


def test_random_inputs_follow_the_spec_and_examples_replace_them() -> None:
    class Tokens(ElasticModel):
        spec = ModelSpec(
            name="tokens",
            inputs=(TensorSpec(name="ids", datatype="INT64", shape=(5,)),),
            outputs=(TensorSpec(name="y", datatype="FP32", shape=(5, 2)),),
            segments=(("only",),),
            plans=every_plan((("only",),)),
        )

        def __init__(self) -> None:
            self.table = nn.Embedding(9, 2)

        def segment(self, index: int, choice: str, previous: str | None) -> Segment:
            def run(tensors: Tensors) -> Tensors:
                seen.append(int(tensors[0].max()))
                return (self.table(tensors[0]),)

            return run

    seen: list[int] = []
    assert check_model(Tokens()).problems == []
    assert max(seen) == 1

    class Typical(Tokens):
        def examples(self, count: int) -> Tensors:
            return (torch.full((count, 5), 8),)

    assert check_model(Typical()).problems == []
    assert max(seen) == 8
