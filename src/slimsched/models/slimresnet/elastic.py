"""A trained SlimResNet as an ElasticModel, with folded segments that share weights where possible.

On a CPU, the fastest form packs weights once, in bfloat16 where the CPU supports it.
"""

from pathlib import Path
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models import network
from slimsched.models.data.images import Colours
from slimsched.models.elastic import ElasticModel, Segment, Tensors, margin
from slimsched.models.network import Trained
from slimsched.models.slimresnet import shipped
from slimsched.models.slimresnet.layers import EPS, GROUP_CHANNELS
from slimsched.models.slimresnet.resnet import FoldedBlock, FoldedConv, SegmentInstance, SlimResNet, fold
from slimsched.models.slimresnet.shape import NetworkShape, slimresnet_figures, slimresnet_spec
from slimsched.models.spec import SLIMRESNET, ModelFigures

# -- The fastest form of folded segments on a CPU: weights packed once, bfloat16 where the CPU supports it.
#
# A plain convolution reorders its weights into oneDNN's layout on every call. For small batches that takes as
# long as the arithmetic. Packed weights have that layout from the start. The operators used here are the ones
# that `torch.compile` emits for frozen convolutions. Where they are missing, plain convolutions run.

HINT_IMAGES = 8
"""oneDNN picks the layout for this batch size. Other batch sizes can use it; other image sizes cannot."""
FAST_PIXELS = 1024
"""Below this many pixels, torch's group norm is several times slower in bfloat16 than in float32."""


def cpu_precision() -> torch.dtype:
    """bfloat16 where the CPU multiplies it in hardware, else single precision."""
    has_instructions = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    return torch.bfloat16 if _has_onednn() and has_instructions() else torch.float32


class PackedConv(nn.Module):
    """A FoldedConv with its weight in oneDNN's own layout."""

    weight: Tensor
    affine: Tensor
    narrow: Tensor

    def __init__(self, conv: FoldedConv, dtype: torch.dtype, side: int) -> None:
        super().__init__()
        self.stride, self.padding = [conv.stride] * 2, [conv.padding] * 2
        plain = conv.weight.to(dtype)  # (out, into, k, k)
        images = [HINT_IMAGES, plain.shape[1], side, side]
        packed = torch._C._nn.mkldnn_reorder_conv2d_weight(  # type: ignore[call-arg]
            plain.to_mkldnn(), self.padding, self.stride, [1, 1], 1, images
        )
        self.groups = plain.shape[0] // GROUP_CHANNELS
        self.register_buffer("weight", packed)
        self.register_buffer("affine", conv.affine[0].float())  # (2, out): gamma, beta
        self.register_buffer("narrow", conv.affine[0].to(dtype))

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = True) -> Tensor:
        """(N, into, H, W) -> (N, out, H / stride, W / stride)."""
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self.weight, None, self.padding, self.stride, [1, 1], 1, "none", [], ""
        )
        if y.shape[2] * y.shape[3] >= FAST_PIXELS:
            y = F.group_norm(y, self.groups, self.narrow[0], self.narrow[1], EPS)
        else:
            y = F.group_norm(y.float(), self.groups, self.affine[0], self.affine[1], EPS)
        if residual is not None:
            y.add_(residual)
        if relu:
            y.relu_()
        return y.to(x.dtype)


def pack(segment: SegmentInstance, dtype: torch.dtype) -> SegmentInstance:
    """Change a folded segment in place into its fastest form on this CPU, and return it."""
    if not (_has_onednn() and hasattr(torch._C._nn, "mkldnn_reorder_conv2d_weight")):
        return segment.to(dtype)
    side = segment.shape.side(segment.segment)
    for module in list(segment.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, FoldedConv):
                setattr(module, name, PackedConv(child, dtype, side * child.stride))
    return segment


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


# -- Trained SlimResNets on disk, and the one that comes with the package.

TrainedModel = Trained[SlimResNet, NetworkShape]


def load(path: Path | None = None) -> TrainedModel:
    """Load the model of a training folder or of its .json; without a path, the shipped model."""
    return network.load(path or shipped.folder() / f"{shipped.NAME}.json", NetworkShape, SlimResNet)


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
        from slimsched.models.slimresnet.fused import normalize

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
