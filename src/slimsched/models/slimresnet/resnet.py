"""SlimResNet: four segments, each of which can run at any of four widths, independently of the others.

images -> [stem, blocks] -> [blocks /2] -> [blocks /2] -> [blocks /2, pool, classifier] -> logits
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from slimsched.core.config import DataError
from slimsched.models.network import SlimNetwork
from slimsched.models.slimresnet.layers import GROUP_CHANNELS, SlimConv2d, SlimGroupNorm, SlimLinear
from slimsched.models.slimresnet.operations import halve
from slimsched.models.slimresnet.shape import SLIM_RESNET, NetworkShape
from slimsched.models.width import SEGMENTS, WIDTHS, check_width

if TYPE_CHECKING:
    from slimsched.models.slimresnet.instance import SegmentInstance


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
        from slimsched.models.slimresnet.instance import fold

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
