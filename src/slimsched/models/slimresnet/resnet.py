"""SlimResNet: four segments, each of which can run at any of four widths, independently of the others.

images -> [stem, blocks] -> [blocks /2] -> [blocks /2] -> [blocks /2, pool, classifier] -> logits

A segment loaded at one width is an instance: plain weights, standardized and sliced once.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import DataError, WidthError
from slimsched.models.network import SlimNetwork
from slimsched.models.slimresnet.layers import (
    GROUP_CHANNELS,
    SlimConv2d,
    SlimGroupNorm,
    SlimLinear,
    group_norm,
    halve,
)
from slimsched.models.slimresnet.shape import SLIM_RESNET, NetworkShape
from slimsched.models.width import SEGMENTS, WIDTHS, check_width


class SlimBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x)); the shortcut may pool and project."""

    def __init__(self, in_channels: int, out_channels: int, *, project: bool) -> None:
        super().__init__()
        self.out_channels = out_channels
        self.conv1 = SlimConv2d(in_channels, out_channels, 3, stride=2 if project else 1)
        self.norm1 = SlimGroupNorm(out_channels, widths=len(WIDTHS))
        self.conv2 = SlimConv2d(out_channels, out_channels, 3)
        self.norm2 = SlimGroupNorm(out_channels, widths=len(WIDTHS), gamma=0.0)
        self.shortcut = SlimConv2d(in_channels, out_channels, 1) if project else None
        self.shortcut_norm = SlimGroupNorm(out_channels, widths=len(WIDTHS)) if project else None

    def forward(self, x: Tensor, width: float) -> Tensor:
        """(N, c_in, H, W) -> (N, c_out, H or H/2, W or W/2)."""
        out, row = int(self.out_channels * width), WIDTHS.index(width)
        shortcut = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            shortcut = self.shortcut_norm(self.shortcut(halve(x), out), row)
        y = self.norm1(self.conv1(x, out), row, relu=True)
        z: Tensor = self.norm2(self.conv2(y, out), row, residual=shortcut, relu=True)
        return z


class SlimSegment(nn.Module):
    """One quarter of the network; the first holds the stem, the last the classifier."""

    def __init__(self, shape: NetworkShape, index: int) -> None:
        super().__init__()
        self.shape, self.index = shape, index
        channels = shape.channels[index]
        self.stem = SlimConv2d(3, channels, 3) if index == 0 else None
        self.stem_norm = SlimGroupNorm(channels, widths=len(WIDTHS)) if index == 0 else None
        into = shape.channels[max(index - 1, 0)]
        self.blocks = nn.ModuleList(
            SlimBlock(into if block == 0 else channels, channels, project=block == 0 and index > 0)
            for block in range(shape.blocks[index])
        )
        self.classifier = SlimLinear(channels, shape.classes) if index == SEGMENTS - 1 else None

    def forward(self, x: Tensor, width: float) -> Tensor:
        """Normalized images or the previous segment's activation -> activation; logits after the last."""
        check_width(width)
        check_input(self.shape, self.index, x)
        if self.stem is not None and self.stem_norm is not None:
            out = int(self.shape.channels[0] * width)
            x = self.stem_norm(self.stem(x, out), WIDTHS.index(width), relu=True)
        for block in self.blocks:
            x = block(x, width)
        if self.classifier is not None:
            x = self.classifier(x.mean(dim=(2, 3), dtype=torch.float32))
        return x


class SlimResNet(SlimNetwork):
    """The whole network; `net(x, widths)` runs any width tuple, `net.segment(i)(x, width)` one segment."""

    shape: NetworkShape

    def __init__(self, shape: NetworkShape = SLIM_RESNET) -> None:
        super().__init__()
        if any(channels % (GROUP_CHANNELS * len(WIDTHS)) for channels in shape.channels):
            raise DataError(
                f"channels {shape.channels} do not split into groups of {GROUP_CHANNELS} at every width; "
                f"use multiples of {GROUP_CHANNELS * len(WIDTHS)}"
            )
        self.shape = shape
        self.segments = nn.ModuleList(SlimSegment(shape, index) for index in range(SEGMENTS))

    def segment(self, index: int) -> SlimSegment:
        """Return one segment, which takes (x, width)."""
        segment = self.segments[index]
        assert isinstance(segment, SlimSegment)
        return segment

    def instance(self, segment: int, *, width: float, previous: float | None = None) -> "SegmentInstance":
        """Fold one segment at one width, for input from the segment before at width `previous`."""

        return fold(self, segment, width=width, previous=previous)


def check_input(shape: NetworkShape, segment: int, x: Tensor) -> None:
    """Raise DataError if this segment cannot take a tensor of this shape."""
    channels = [3] if segment == 0 else [int(shape.channels[segment - 1] * width) for width in WIDTHS]
    side = shape.image_size if segment == 0 else shape.side(segment - 1)
    if x.dim() != 4 or x.shape[1] not in channels or x.shape[2:] != (side, side):
        wanted = " or ".join(str(c) for c in channels)
        raise DataError(
            f"segment {segment} was given shape {tuple(x.shape)}; it takes (N, {wanted}, {side}, {side})"
        )


# -- A segment loaded at one width: plain convolution weights, standardized and sliced once.
#
# Executors run these. An instance never changes after loading, so several slots can share one.


class FoldedConv(nn.Module):
    """A convolution with the plain weight of one slice, followed by its group norm."""

    weight: Tensor
    affine: Tensor

    def __init__(self, conv: SlimConv2d, norm: SlimGroupNorm, *, into: int, out: int, row: int) -> None:
        super().__init__()
        self.stride, self.padding = conv.stride, conv.padding
        weight = conv.sliced(out, into).detach().contiguous(memory_format=torch.channels_last)
        self.register_buffer("weight", weight)  # (out, into, k, k)
        self.register_buffer("affine", norm.affine[row : row + 1, :, :out].detach().clone())  # (1, 2, out)

    def forward(self, x: Tensor, *, residual: Tensor | None = None, relu: bool = True) -> Tensor:
        """(N, into, H, W) -> (N, out, H / stride, W / stride)."""
        y = F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        return group_norm(y, self.affine, row=0, group=GROUP_CHANNELS, residual=residual, relu=relu)


class FoldedBlock(nn.Module):
    """A residual block at one width."""

    def __init__(self, block: SlimBlock, *, into: int, width: float) -> None:
        super().__init__()
        out, row = int(block.out_channels * width), WIDTHS.index(width)
        self.first = FoldedConv(block.conv1, block.norm1, into=into, out=out, row=row)
        self.second = FoldedConv(block.conv2, block.norm2, into=out, out=out, row=row)
        self.shortcut = None
        if block.shortcut is not None and block.shortcut_norm is not None:
            self.shortcut = FoldedConv(block.shortcut, block.shortcut_norm, into=into, out=out, row=row)

    def forward(self, x: Tensor) -> Tensor:
        """(N, into, H, W) -> (N, out, H or H/2, W or W/2)."""
        residual = x if self.shortcut is None else self.shortcut(halve(x), relu=False)
        y: Tensor = self.second(self.first(x), residual=residual)
        return y


class FoldedClassifier(nn.Module):
    """Averages over the pixels, then applies the classifier's leading inputs."""

    weight: Tensor
    bias: Tensor

    def __init__(self, linear: SlimLinear, *, into: int) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight[:, :into].detach().clone())  # (classes, into)
        self.register_buffer("bias", linear.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """(N, into, H, W) -> (N, classes) in single precision."""
        pooled = x.mean(dim=(2, 3), dtype=torch.float32)
        return F.linear(pooled, self.weight.float(), self.bias.float())


class SegmentInstance(nn.Module):
    """One segment at one width, for the output of the previous segment at width `previous`."""

    def __init__(self, segment: SlimSegment, *, width: float, previous: float | None) -> None:
        super().__init__()
        check_width(width)
        if (previous is None) != (segment.index == 0):
            raise WidthError(
                f"segment {segment.index} with previous width {previous}: the first segment has none, "
                "every other needs one"
            )
        self.shape, self.segment, self.width, self.previous = segment.shape, segment.index, width, previous
        out, row = segment.shape.channels_at(segment.index, width), WIDTHS.index(width)
        into = segment.shape.channels_at(segment.index - 1, previous)
        layers: list[nn.Module] = []
        if segment.stem is not None and segment.stem_norm is not None:
            layers.append(FoldedConv(segment.stem, segment.stem_norm, into=into, out=out, row=row))
            into = out
        for block in segment.blocks:
            assert isinstance(block, SlimBlock)
            layers.append(FoldedBlock(block, into=into, width=width))
            into = out
        if segment.classifier is not None:
            layers.append(FoldedClassifier(segment.classifier, into=out))
        self.layers = nn.Sequential(*layers)
        self.eval()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Images or activation in this instance's precision -> activation (logits after the last segment)."""
        check_input(self.shape, self.segment, x)
        y: Tensor = self.layers(x.contiguous(memory_format=torch.channels_last))
        return y

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that this instance's weights take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())


def fold(net: SlimResNet, segment: int, *, width: float, previous: float | None = None) -> SegmentInstance:
    """Load one segment of a network at one width; `.to(device, dtype)` moves it."""
    if not 0 <= segment < SEGMENTS:
        raise WidthError(f"segment {segment} does not exist; the network has segments 0 to {SEGMENTS - 1}")
    if previous is not None:
        check_width(previous)
    return SegmentInstance(net.segment(segment), width=width, previous=previous)
