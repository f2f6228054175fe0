"""Finds the images that each width tuple classifies correctly. Tuples share the work of equal beginnings."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slimsched.core.config import DataError
from slimsched.models.data.image_set import Colours, ImageSet
from slimsched.models.elastic import margin
from slimsched.models.measured import Measured
from slimsched.models.network import SlimNetwork
from slimsched.models.training.augmentation import normalize
from slimsched.models.width import tuple_index

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
    ) -> Measured:
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
        return Measured(correct=correct, answers=answers, confidence=sure)

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
