"""Measures every plan on examples: right or wrong, and how sure the model is if it says so."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimsched.core.config import DataError
from slimsched.models.data.inputs import Inputs
from slimsched.models.elastic import ElasticModel, Tensors
from slimsched.models.measured import Measured
from slimsched.models.plan_run import PlanRun
from slimsched.models.spec import ModelSpec

Advance = Callable[[int], None]
"""Called with the number of examples just finished."""


def measure_accuracy(
    model: ElasticModel,
    data: Inputs,
    *,
    batch: int = 64,
    device: str = "cpu",
    advance: Advance = lambda n: None,
) -> Measured:
    """Measure for each plan (row) and example (column) whether the answer is the label."""
    assert data.labels is not None
    classes = _classes(model.spec)
    if not 0 <= data.labels.min() <= data.labels.max() < classes:
        raise DataError(
            f"labels reach from {data.labels.min()} to {data.labels.max()}, but the model has "
            f"{classes} classes; evaluate it on the data that it was trained for"
        )
    return _compare(model, data, data.labels, batch=batch, device=device, advance=advance)


def measure_agreement(
    model: ElasticModel,
    data: Inputs,
    *,
    batch: int = 64,
    device: str = "cpu",
    advance: Advance = lambda n: None,
) -> Measured:
    """Measure for each plan (row) and example (column) whether the answer equals the widest plan's."""
    _classes(model.spec)
    return _compare(model, data, None, batch=batch, device=device, advance=advance)


def agreement_name(spec: ModelSpec, examples: int, *, random: bool) -> str:
    """Return a table name that shows this is agreement, not accuracy."""
    kind = "random inputs" if random else "examples"
    return f"agreement with {spec.text(spec.widest)} on {examples} {kind}"


@torch.inference_mode()
def _compare(
    model: ElasticModel,
    data: Inputs,
    labels: NDArray[np.int64] | None,
    *,
    batch: int,
    device: str,
    advance: Advance,
) -> Measured:
    spec = model.spec
    model.place(torch.device(device))
    run = PlanRun(model)
    rows = {plan: row for row, plan in enumerate(spec.plans)}
    correct = np.zeros((len(rows), len(data)), dtype=bool)
    answered = np.zeros(correct.shape, dtype=np.int32)
    sure = np.zeros(correct.shape, dtype=np.float32) if model.is_confident else None
    for start in range(0, len(data), batch):
        some = slice(start, start + batch)
        raw: Tensors = tuple(torch.from_numpy(np.array(one[some])).to(device) for one in data.arrays)
        answers = {}
        for plan, last in run.every_path(run.prepare(raw), spec.plans):
            if plan not in rows:
                continue
            answers[plan] = _answer(run.finish(last))
            if sure is not None and (confidence := model.confidence(last)) is not None:
                sure[rows[plan], some] = confidence.float().cpu().numpy()
        wanted = answers[spec.widest] if labels is None else torch.from_numpy(labels[some])
        for plan, answer in answers.items():
            correct[rows[plan], some] = (answer == wanted).numpy()
            answered[rows[plan], some] = answer.numpy()
        advance(len(raw[0]))
    return Measured(correct=correct, answers=answered, confidence=sure)


def _answer(outputs: Tensors) -> Tensor:
    """Return the class predicted for each example."""
    return outputs[0].argmax(dim=1).cpu()


def _classes(spec: ModelSpec) -> int:
    output = spec.outputs[0]
    if len(output.shape) != 1:
        raise DataError(
            f"evaluating needs one score per class, but output '{output.name}' has shape "
            f"{list(output.shape)}; put an output of shape [classes] first"
        )
    return output.shape[0]
