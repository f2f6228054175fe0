"""Models give on a GPU what they give on a CPU, once they are placed there."""

from pathlib import Path

import pytest
import torch

from folders import skeleton_folder
from slimsched.models.elastic import ElasticModel, PlanRun, Tensors, random_inputs
from slimsched.models.loading import load_model, trained_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
EXAMPLES = Path(__file__).parents[2] / "examples" / "models"


@torch.inference_mode()
def answers(model: ElasticModel, raw: Tensors, device: str) -> list[torch.Tensor]:
    model.place(torch.device(device))
    moved = tuple(one.to(device) for one in raw)
    plans = model.spec.plans[:: max(1, len(model.spec.plans) // 16)]
    return [outputs[0].cpu() for _, outputs in PlanRun(model).outputs(moved, plans)]


@pytest.mark.parametrize("name", ["skeleton", "early_exits", "nested_vit", "slimresnet"])
def test_moved_models_give_the_same_answers(tmp_path: Path, name: str) -> None:
    if name == "slimresnet":
        model: ElasticModel = trained_model(precision=torch.float32)
    elif name == "skeleton":
        model = load_model(skeleton_folder(tmp_path / name))
    else:
        model = load_model(EXAMPLES / name)
    raw = random_inputs(model.spec, 4)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for cpu, cuda in zip(answers(model, raw, "cpu"), answers(model, raw, "cuda"), strict=True):
            assert torch.allclose(cpu, cuda, rtol=1e-2, atol=1e-2 * float(cpu.abs().max()))


def test_slimresnet_runs_in_bfloat16_on_a_gpu() -> None:
    model = trained_model()
    (logits,) = answers(model, random_inputs(model.spec, 4), "cuda")[:1]
    assert model.precision == torch.bfloat16
    assert logits.dtype == torch.float32
