"""Measures what plans are worth on examples: of the shipped networks tuple by tuple, of any model plan by
plan.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimsched.core.config import DataError
from slimsched.models.data.dataset import Inputs
from slimsched.models.data.images import Colours, ImageSet
from slimsched.models.elastic import ElasticModel, PlanRun, Tensors, margin
from slimsched.models.network import SlimNetwork
from slimsched.models.quality import MeasuredAnswers
from slimsched.models.spec import ModelSpec
from slimsched.models.training.recipe import normalize
from slimsched.models.width import tuple_index

# -- Measures every plan on examples: right or wrong, and how sure the model is if it says so.

Advance = Callable[[int], None]
"""Called with the number of examples just finished."""


def measure_accuracy(
    model: ElasticModel,
    data: Inputs,
    *,
    batch: int = 64,
    device: str = "cpu",
    advance: Advance = lambda n: None,
) -> MeasuredAnswers:
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
) -> MeasuredAnswers:
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
) -> MeasuredAnswers:
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
    return MeasuredAnswers(correct=correct, answers=answered, confidence=sure)


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


# -- Finds the images that each width tuple classifies correctly. Tuples share the work of equal beginnings.

Widths = tuple[float, ...]


class Evaluator:
    """Runs a network's folded segments in single precision on the device the network is on."""

    def __init__(self, net: SlimNetwork, colours: Colours) -> None:
        self.net, self.colours = net, colours
        self._device = next(net.parameters()).device
        self._instances: dict[tuple[int, float | None, float], Callable[[Tensor], Tensor]] = {}

    def logits(self, images: NDArray[np.uint8] | Tensor, tuples: Sequence[Widths]) -> dict[Widths, Tensor]:
        """Raw images (N, 3, S, S) -> logits (N, classes) of every tuple."""
        for widths in tuples:
            tuple_index(widths)
        pixels = torch.as_tensor(images, device=self._device).float() / 255
        logits: dict[Widths, Tensor] = {}
        self._descend(normalize(pixels, self.colours), (), frozenset(tuples), logits)
        return logits

    def correct(
        self,
        data: ImageSet,
        tuples: Sequence[Widths],
        *,
        batch: int = 250,
        advance: Callable[[int], None] = lambda images: None,
    ) -> NDArray[np.bool_]:
        """Return whether each tuple (row) classifies each image (column) correctly."""
        return self.measured(data, tuples, batch=batch, advance=advance).correct

    def measured(
        self,
        data: ImageSet,
        tuples: Sequence[Widths],
        *,
        batch: int = 250,
        advance: Callable[[int], None] = lambda images: None,
    ) -> MeasuredAnswers:
        """Measure the answer of each tuple (row) to each image (column), and how sure it is of it."""
        if len(data.classes) != self.net.shape.classes:
            raise DataError(
                f"the data has {len(data.classes)} classes, the network {self.net.shape.classes}; "
                "evaluate on the data set it was trained on"
            )
        correct = np.zeros((len(tuples), len(data)), dtype=bool)
        answers, sure = np.zeros(correct.shape, np.int32), np.zeros(correct.shape, np.float32)
        for start in range(0, len(data), batch):
            labels = torch.from_numpy(data.labels[start : start + batch]).to(self._device)
            with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
                logits = self.logits(np.array(data.images[start : start + batch]), tuples)
            some = slice(start, start + batch)
            named = torch.stack([logits[widths].argmax(dim=1) for widths in tuples])
            correct[:, some] = (named == labels).cpu().numpy()
            answers[:, some] = named.cpu().numpy()
            sure[:, some] = torch.stack([margin(logits[widths]) for widths in tuples]).cpu().numpy()
            advance(len(labels))
        return MeasuredAnswers(correct=correct, answers=answers, confidence=sure)

    def _descend(
        self, x: Tensor, prefix: Widths, tuples: frozenset[Widths], logits: dict[Widths, Tensor]
    ) -> None:
        depth = len(prefix)
        if depth == len(self.net.segments):
            logits[prefix] = x
            return
        for width in sorted({widths[depth] for widths in tuples}):
            instance = self._instance(depth, prefix[-1] if prefix else None, width)
            rest = frozenset(widths for widths in tuples if widths[depth] == width)
            self._descend(instance(x), (*prefix, width), rest, logits)

    def _instance(self, segment: int, previous: float | None, width: float) -> Callable[[Tensor], Tensor]:
        key = (segment, previous, width)
        if key not in self._instances:
            self._instances[key] = self.net.instance(segment, width=width, previous=previous)
        return self._instances[key]


def accuracy_percent(correct: NDArray[np.bool_]) -> float:
    """Share of correct images in percent, to two decimals."""
    return round(100 * float(correct.mean()), 2)
