"""A trained SlimResNet as an ElasticModel, with folded segments that share weights where possible."""

from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.data.image_set import Colours
from slimsched.models.elastic import ElasticModel, Segment, Tensors, margin
from slimsched.models.figures import ModelFigures
from slimsched.models.shipped_names import SLIMRESNET
from slimsched.models.slimresnet.instance import FoldedBlock, FoldedConv, SegmentInstance, fold
from slimsched.models.slimresnet.packed import cpu_precision, pack
from slimsched.models.slimresnet.spec import slimresnet_figures, slimresnet_spec
from slimsched.models.slimresnet.weights import TrainedModel, load

STEM_CHANNELS = 8
"""Tensor cores need a multiple of eight input channels, so CUDA images get extra channels of zeros."""


class SlimResNetModel(ElasticModel):
    """Folds a segment's weights once per width.

    `precision` applies to activations and convolutions. The default is bfloat16 on GPUs and on CPUs that
    multiply it in hardware, else float32. Move `net` to its device before asking for segments.
    """

    def __init__(
        self, trained: TrainedModel, *, name: str | None = None, precision: torch.dtype | None = None
    ) -> None:
        card = trained.card
        self.spec = slimresnet_spec(card.shape, (name or card.name).replace("/", "-"), card.classes)
        self.net, self.shape = trained.net, card.shape
        self._wanted = precision
        self.precision = precision or cpu_precision()
        self._device = torch.device("cpu")
        self._scale, self._shift = scale_and_shift(card.colours)
        self._folded: WeakValueDictionary[tuple[int, float, str], SegmentInstance] = WeakValueDictionary()

    def place(self, device: torch.device) -> None:
        """Fold for this device from now on; the network itself stays where it is."""
        self._device = device
        self.precision = self._wanted or (cpu_precision() if device.type == "cpu" else torch.bfloat16)
        self._scale, self._shift = self._scale.to(device), self._shift.to(device)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Fold one segment at one width, for input of the previous segment's width."""
        return FoldedSegment(self._fold(index, float(choice), None if previous is None else float(previous)))

    def prepare(self, raw: Tensors) -> Tensors:
        """uint8 (N, 3, S, S) -> normalized, in this model's precision, channels_last."""
        (images,) = raw
        if images.is_cuda:
            return (self._padded(images),)
        normal = torch.addcmul(self._shift, images.to(torch.float32), self._scale)
        return (normal.to(self.precision).contiguous(memory_format=torch.channels_last),)

    def finish(self, last: Tensors) -> Tensors:
        """Convert the logits to single precision."""
        return (last[0].float(),)

    def confidence(self, last: Tensors) -> Tensor:
        """Return the margin between the two most likely classes."""
        return margin(last[0])

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the network as it was trained; None in half precision, where rounding differs."""
        if self.precision != torch.float32:
            return None
        widths = tuple(float(name) for name in plan)
        return lambda images: (self.net(images[0], widths),)

    def figures(self) -> ModelFigures:
        """Compute the figures by formula, because a dry run does not count packed convolutions."""
        return slimresnet_figures(self.shape)

    def _fold(self, index: int, width: float, previous: float | None) -> SegmentInstance:
        """Fold a segment; only its first block depends on the previous width, the rest is shared."""
        one = fold(self.net, index, width=width, previous=previous)
        ready = pack(one, self.precision) if self._device.type == "cpu" else self._moved(one)
        first = self._folded.setdefault((index, width, str(self._device)), ready)
        if first is not ready:
            _share(ready, first)
        return ready

    def _moved(self, one: SegmentInstance) -> SegmentInstance:
        """Move to the device: convolutions in this model's precision, norms and classifier in float32."""
        for layer in one.modules():
            if isinstance(layer, FoldedConv):
                weight = layer.weight
                if weight.shape[1] == 3:
                    weight = F.pad(weight, (0, 0, 0, 0, 0, STEM_CHANNELS - 3))
                layer.weight = weight.to(self.precision).contiguous(memory_format=torch.channels_last)
        return one.to(self._device)

    def _padded(self, images: Tensor) -> Tensor:
        """uint8 (N, 3, H, W) -> normalized (N, STEM_CHANNELS, H, W), channels_last, in one pass."""
        from slimsched.models.slimresnet.fused_images import normalize

        count, _, height, width = images.shape
        out = torch.empty(
            (count, STEM_CHANNELS, height, width),
            device=images.device,
            dtype=self.precision,
            memory_format=torch.channels_last,
        )
        normalize(images, out, self._scale.flatten(), self._shift.flatten())  # type: ignore[no-untyped-call]
        return out


class FoldedSegment:
    """A folded segment that takes and returns tuples of tensors."""

    def __init__(self, instance: SegmentInstance) -> None:
        self.instance = instance

    def __call__(self, tensors: Tensors) -> Tensors:
        """(N, c, H, W) -> (N, c', H', W'), logits after the last segment."""
        if tensors[0].is_cuda:
            return (self.instance.layers(tensors[0]),)  # no checks: this is captured as a graph
        return (self.instance(tensors[0]),)

    def weights(self) -> list[Tensor]:
        """List the folded weights."""
        return list(self.instance.buffers())

    def own_modules(self) -> list[nn.Module]:
        """List the modules with weights of this width: a server may move them to the host and back."""
        return [self.instance]


def trained_model(folder: Path | None = None, *, precision: torch.dtype | None = None) -> SlimResNetModel:
    """Load a folder that `slim model train` wrote; the shipped network when no folder is given."""
    return SlimResNetModel(load(folder), name=SLIMRESNET if folder is None else None, precision=precision)


def _share(one: SegmentInstance, first: SegmentInstance) -> None:
    block, shared = one.layers[0], first.layers[0]
    if isinstance(block, FoldedBlock) and isinstance(shared, FoldedBlock) and one.segment > 0:
        block.second = shared.second
        one.layers = nn.Sequential(block, *list(first.layers)[1:])
    else:
        one.layers = first.layers


def scale_and_shift(colours: Colours) -> tuple[Tensor, Tensor]:
    """Return the scale and shift that normalize raw bytes: x · scale + shift."""
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (colours.mean, colours.std))
    return 1.0 / (255.0 * std), -mean / std
