"""A segment loaded at one width: plain convolution weights, standardized and sliced once.

Executors run these. An instance never changes after loading, so several slots can share one.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import WidthError
from slimsched.models.slimresnet.layers import GROUP_CHANNELS, SlimConv2d, SlimGroupNorm, SlimLinear
from slimsched.models.slimresnet.operations import group_norm, halve
from slimsched.models.slimresnet.resnet import SlimBlock, SlimResNet, SlimSegment, check_input
from slimsched.models.width import SEGMENTS, WIDTHS, check_width


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
