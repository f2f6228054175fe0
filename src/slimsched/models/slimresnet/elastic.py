"""A trained SlimResNet as an ElasticModel: segments folded once per width, sharing weights where possible.

On a CPU, the fastest form of a segment has its weights packed, in bfloat16 where the CPU supports it.
"""

from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.data.images import Colours
from slimsched.models.elastic import ElasticModel, Segment, Tensors, margin
from slimsched.models.network import SegmentAtWidth, Trained, check_input
from slimsched.models.package import network_figures, network_spec
from slimsched.models.slimresnet.resnet import (
    EPS,
    GROUP_CHANNELS,
    FoldedBlock,
    FoldedConv,
    SlimResNet,
)
from slimsched.models.slimresnet.shape import NetworkShape
from slimsched.models.spec import ModelFigures

# -- The fastest form of folded segments on a CPU.
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


def pack(segment: SegmentAtWidth, dtype: torch.dtype) -> SegmentAtWidth:
    """Change a folded segment in place into its fastest form on this CPU, and return it."""
    if not (_has_onednn() and hasattr(torch._C._nn, "mkldnn_reorder_conv2d_weight")):
        return segment.to(dtype)
    assert isinstance(segment.shape, NetworkShape)
    side = segment.shape.side(segment.segment)
    for module in list(segment.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, FoldedConv):
                setattr(module, name, PackedConv(child, dtype, side * child.stride))
    return segment


def _has_onednn() -> bool:
    return bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]


# -- Trained SlimResNets.

STEM_CHANNELS = 8
"""Tensor cores need a multiple of eight input channels, so CUDA images get extra channels of zeros."""


class FoldedModel(ElasticModel):
    """A slimmable image network whose segments are folded once per width, for one device.

    `precision` applies to activations and convolutions. The default is bfloat16 on GPUs and what `on_cpu`
    says elsewhere.
    """

    on_cpu = torch.float32
    precision: torch.dtype

    def __init__(
        self, trained: Trained, *, name: str | None = None, precision: torch.dtype | None = None
    ) -> None:
        card = trained.card
        self.spec = network_spec(card.shape, name or card.name, card.classes)
        self.net = trained.net
        self._scale, self._shift = scale_and_shift(card.colours)
        self._wanted = precision
        self.place(torch.device("cpu"))

    def place(self, device: torch.device) -> None:
        """Fold for this device from now on; the network itself stays where it is."""
        self._device = device
        self._scale, self._shift = self._scale.to(device), self._shift.to(device)
        self.precision = self._wanted or (self.on_cpu if device.type == "cpu" else torch.bfloat16)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Fold one segment at one width, for input of the previous segment's width."""
        before = None if previous is None else float(previous)
        return FoldedSegment(self.fold(index, float(choice), before))

    def fold(self, index: int, width: float, previous: float | None) -> SegmentAtWidth:
        """Fold one segment at one width, on this model's device."""
        one = self.net.instance(index, width=width, previous=previous)
        return one.to(self._device, self.precision)

    def prepare(self, raw: Tensors) -> Tensors:
        """uint8 (N, 3, S, S) -> normalized, in this model's precision, channels_last."""
        normal = torch.addcmul(self._shift, raw[0].to(torch.float32), self._scale)
        return (normal.to(self.precision).contiguous(memory_format=torch.channels_last),)

    def finish(self, last: Tensors) -> Tensors:
        """Convert the logits to single precision."""
        return (last[0].float(),)

    def confidence(self, last: Tensors) -> Tensor:
        """Return the margin between the two most likely classes."""
        return margin(last[0])

    def figures(self) -> ModelFigures:
        """Compute the figures by formula, because a dry run does not count packed convolutions."""
        return network_figures(self.net.shape)


class SlimResNetModel(FoldedModel):
    """Runs in bfloat16 also on CPUs that multiply it in hardware; widths share what does not differ."""

    net: SlimResNet

    def __init__(
        self, trained: Trained, *, name: str | None = None, precision: torch.dtype | None = None
    ) -> None:
        self.on_cpu = cpu_precision()
        self._folded: WeakValueDictionary[tuple[int, float, str], SegmentAtWidth] = WeakValueDictionary()
        super().__init__(trained, name=name, precision=precision)

    def prepare(self, raw: Tensors) -> Tensors:
        """uint8 (N, 3, S, S) -> normalized; on CUDA in one pass, with zeros up to STEM_CHANNELS channels."""
        if not raw[0].is_cuda:
            return super().prepare(raw)
        from slimsched.models.slimresnet.fused import normalize

        count, _, height, width = raw[0].shape
        out = torch.empty(
            (count, STEM_CHANNELS, height, width),
            device=raw[0].device,
            dtype=self.precision,
            memory_format=torch.channels_last,
        )
        normalize(raw[0], out, self._scale.flatten(), self._shift.flatten())  # type: ignore[no-untyped-call]
        return (out,)

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the network as it was trained; None in half precision, where rounding differs."""
        if self.precision != torch.float32:
            return None
        widths = tuple(float(name) for name in plan)
        return lambda images: (self.net(images[0], widths),)

    def fold(self, index: int, width: float, previous: float | None) -> SegmentAtWidth:
        """Fold a segment; only its first block depends on the previous width, the rest is shared."""
        one = self.net.instance(index, width=width, previous=previous)
        ready = pack(one, self.precision) if self._device.type == "cpu" else self._moved(one)
        first = self._folded.setdefault((index, width, str(self._device)), ready)
        if first is not ready:
            _share(ready, first)
        return ready

    def _moved(self, one: SegmentAtWidth) -> SegmentAtWidth:
        """Move to the device: convolutions in this model's precision, norms and classifier in float32."""
        for layer in one.modules():
            if isinstance(layer, FoldedConv):
                weight = layer.weight
                if weight.shape[1] == 3:
                    weight = F.pad(weight, (0, 0, 0, 0, 0, STEM_CHANNELS - 3))
                layer.weight = weight.to(self.precision).contiguous(memory_format=torch.channels_last)
        return one.to(self._device)


class FoldedSegment:
    """A folded segment that takes and returns tuples of tensors."""

    def __init__(self, instance: SegmentAtWidth) -> None:
        self.instance = instance
        self._takes = instance.shape.takes(instance.segment)

    def __call__(self, tensors: Tensors) -> Tensors:
        """(N, c, H, W) -> (N, c', H', W'), logits after the last segment."""
        x = tensors[0]
        if not x.is_cuda:  # on CUDA this is captured as a graph
            if tuple(x.shape[1:]) not in self._takes:
                check_input(self.instance.shape, self.instance.segment, x)
            if x.dim() == 4:
                x = x.contiguous(memory_format=torch.channels_last)
        return (self.instance.layers(x),)

    def own_modules(self) -> list[nn.Module]:
        """List the modules with weights of this width: a server may move them to the host and back."""
        return [self.instance]


def _share(one: SegmentAtWidth, first: SegmentAtWidth) -> None:
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
