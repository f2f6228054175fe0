"""Measures the accuracy of every plan: right or wrong, for each plan and example."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimsched.kernel.errors import DataError
from slimsched.models.data.inputs import Inputs
from slimsched.models.elastic import ElasticModel, Tensors
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
) -> NDArray[np.bool_]:
    """Say for each plan (row) and example (column) whether the answer is the label."""
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
) -> NDArray[np.bool_]:
    """Say for each plan (row) and example (column) whether the answer equals the widest plan's."""
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
) -> NDArray[np.bool_]:
    spec = model.spec
    model.place(torch.device(device))
    run = PlanRun(model)
    rows = {plan: row for row, plan in enumerate(spec.plans)}
    correct = np.zeros((len(rows), len(data)), dtype=bool)
    for start in range(0, len(data), batch):
        some = slice(start, start + batch)
        raw: Tensors = tuple(torch.from_numpy(np.array(one[some])).to(device) for one in data.arrays)
        answers = {plan: _answer(outputs) for plan, outputs in run.outputs(raw, spec.plans)}
        wanted = answers[spec.widest] if labels is None else torch.from_numpy(labels[some])
        for plan, answer in answers.items():
            correct[rows[plan], some] = (answer == wanted).numpy()
        advance(len(raw[0]))
    return correct


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
