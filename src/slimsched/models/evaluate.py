"""Measures what plans are worth on examples: which answers are right, and how sure the model is of them."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from slimsched.core.config import DataError
from slimsched.models.data.dataset import Inputs
from slimsched.models.data.images import ImageSet
from slimsched.models.elastic import ElasticModel, PlanRun, Tensors
from slimsched.models.quality import MeasuredAnswers
from slimsched.models.spec import ModelSpec, Path

Advance = Callable[[int], None]
"""Called with the number of examples just finished."""


def agreement_name(spec: ModelSpec, examples: int, *, random: bool) -> str:
    """Return a table name that shows this is agreement, not accuracy."""
    kind = "random inputs" if random else "examples"
    return f"agreement with {spec.text(spec.widest)} on {examples} {kind}"


@torch.inference_mode()
def measure(
    model: ElasticModel,
    data: Inputs,
    *,
    plans: Sequence[Path] = (),
    agreement: bool = False,
    batch: int = 64,
    device: str = "cpu",
    advance: Advance = lambda n: None,
) -> MeasuredAnswers:
    """Measure for each plan (row) and example (column) whether the answer is the label.

    With `agreement`, whether it is the widest plan's answer. Without `plans`, all of the model's run.
    """
    plans, labels = plans or model.spec.plans, None if agreement else data.labels
    classes = _classes(model.spec)
    assert agreement or labels is not None
    if labels is not None and not 0 <= labels.min() <= labels.max() < classes:
        raise DataError(
            f"labels reach from {labels.min()} to {labels.max()}, but the model has {classes} classes; "
            "evaluate it on the data that it was trained for"
        )
    model.place(torch.device(device))
    run = PlanRun(model)
    rows = {plan: row for row, plan in enumerate(plans)}
    correct = np.zeros((len(rows), len(data)), dtype=bool)
    answered = np.zeros(correct.shape, dtype=np.int32)
    sure = np.zeros(correct.shape, dtype=np.float32) if model.is_confident else None
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):  # single precision is not rounded
        for start in range(0, len(data), batch):
            some = slice(start, start + batch)
            raw: Tensors = tuple(torch.from_numpy(np.array(one[some])).to(device) for one in data.arrays)
            answers = {}
            for plan, last in run.every_path(run.prepare(raw), plans):
                if plan not in rows:
                    continue
                answers[plan] = run.finish(last)[0].argmax(dim=1).cpu()
                if sure is not None and (confidence := model.confidence(last)) is not None:
                    sure[rows[plan], some] = confidence.float().cpu().numpy()
            wanted = answers[model.spec.widest] if labels is None else torch.from_numpy(labels[some])
            for plan, answer in answers.items():
                correct[rows[plan], some] = (answer == wanted).numpy()
                answered[rows[plan], some] = answer.numpy()
            advance(len(raw[0]))
    return MeasuredAnswers(correct=correct, answers=answered, confidence=sure)


def _classes(spec: ModelSpec) -> int:
    """Return how many classes the model scores; DataError if it scores none."""
    output = spec.outputs[0]
    if len(output.shape) != 1:
        raise DataError(
            f"evaluating needs one score per class, but output '{output.name}' has shape "
            f"{list(output.shape)}; put an output of shape [classes] first"
        )
    return output.shape[0]


def image_inputs(images: ImageSet, classes: int) -> Inputs:
    """Take labelled images as the inputs of a model that knows this many classes."""
    if len(images.classes) != classes:
        raise DataError(
            f"the data has {len(images.classes)} classes, the network {classes}; "
            "evaluate on the data set it was trained on"
        )
    return Inputs(arrays=(images.images,), labels=images.labels)
