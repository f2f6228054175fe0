"""A trained SlimResNet as an ElasticModel: folded segments, packed for the CPU, that share what they can."""

from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from slimsched.models.data.image_set import Colours
from slimsched.models.elastic import ElasticModel, Segment, Tensors
from slimsched.models.figures import ModelFigures
from slimsched.models.slimresnet.instance import FoldedBlock, SegmentInstance, fold
from slimsched.models.slimresnet.packed import cpu_precision, pack
from slimsched.models.slimresnet.spec import NAME, slimresnet_figures, slimresnet_spec
from slimsched.models.slimresnet.weights import TrainedModel, load


class SlimResNetModel(ElasticModel):
    """Folds a segment's weights once per width; `precision` is that of activations and convolutions."""

    def __init__(
        self, trained: TrainedModel, *, name: str | None = None, precision: torch.dtype | None = None
    ) -> None:
        card = trained.card
        self.spec = slimresnet_spec(card.shape, (name or card.name).replace("/", "-"), card.classes)
        self.net, self.shape = trained.net, card.shape
        self.precision = precision or cpu_precision()
        self._scale, self._shift = _scale_and_shift(card.colours)
        self._folded: WeakValueDictionary[tuple[int, float, str], SegmentInstance] = WeakValueDictionary()

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Fold one segment at one width for what the width before hands over."""
        return FoldedSegment(self._fold(index, float(choice), None if previous is None else float(previous)))

    def prepare(self, raw: Tensors) -> Tensors:
        """uint8 (N, 3, S, S) -> normalized, in this model's precision, channels_last."""
        (images,) = raw
        scale, shift = self._scale.to(images.device), self._shift.to(images.device)
        normal = torch.addcmul(shift, images.to(torch.float32), scale)
        return (normal.to(self.precision).contiguous(memory_format=torch.channels_last),)

    def finish(self, last: Tensors) -> Tensors:
        """Logits in single precision."""
        return (last[0].float(),)

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the network as it is trained; None in half precision, where sums differ."""
        if self.precision != torch.float32:
            return None
        widths = tuple(float(name) for name in plan)
        return lambda images: (self.net(images[0], widths),)

    def figures(self) -> ModelFigures:
        """Compute them by formula: packed convolutions are not counted in a dry run."""
        return slimresnet_figures(self.shape)

    def _fold(self, index: int, width: float, previous: float | None) -> SegmentInstance:
        """Fold a segment; only its first block depends on the previous width, the rest is shared."""
        device = next(self.net.parameters()).device
        one = fold(self.net, index, width=width, previous=previous)
        ready = pack(one, self.precision) if device.type == "cpu" else one.to(device, self.precision)
        first = self._folded.setdefault((index, width, str(device)), ready)
        if first is not ready:
            _share(ready, first)
        return ready


class FoldedSegment:
    """A folded segment that takes and gives tuples of tensors."""

    def __init__(self, instance: SegmentInstance) -> None:
        self.instance = instance

    def __call__(self, tensors: Tensors) -> Tensors:
        """(N, c, H, W) -> (N, c', H', W'), logits after the last segment."""
        return (self.instance(tensors[0]),)


def trained_model(folder: Path | None = None, *, precision: torch.dtype | None = None) -> SlimResNetModel:
    """Load a folder that `slim model train` wrote; the shipped network when no folder is given."""
    return SlimResNetModel(load(folder), name=NAME if folder is None else None, precision=precision)


def _share(one: SegmentInstance, first: SegmentInstance) -> None:
    block, shared = one.layers[0], first.layers[0]
    if isinstance(block, FoldedBlock) and isinstance(shared, FoldedBlock) and one.segment > 0:
        block.second = shared.second
        one.layers = nn.Sequential(block, *list(first.layers)[1:])
    else:
        one.layers = first.layers


def _scale_and_shift(colours: Colours) -> tuple[Tensor, Tensor]:
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (colours.mean, colours.std))
    return 1.0 / (255.0 * std), -mean / std
