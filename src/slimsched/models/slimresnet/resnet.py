"""SlimResNet: four segments, each of which can run at any of four widths, independently of the others.

images -> [stem, blocks] -> [blocks /2] -> [blocks /2] -> [blocks /2, pool, classifier] -> logits

A segment loaded at one width is an instance: plain weights, standardized and sliced once.
"""

import math
from functools import cache
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import DataError, WidthError
from slimsched.models.network import SlimNetwork, SlimNetworkSegment
from slimsched.models.slimresnet.shape import SLIM_RESNET, NetworkShape
from slimsched.models.width import SEGMENTS, WIDTHS, check_width

# -- Layers of which slices run.
#
# Sliceable layers: weights are stored once at full width, and each call uses the leading channels it needs.
#
# The input's channel count decides how many input channels a layer uses; the caller names the number of
# output channels. No layer remembers the width it last ran at. Their operations are fused kernels on CUDA
# with Triton, and plain PyTorch everywhere else.

EPS = 1e-5
GROUP_CHANNELS = 8


@cache
def _fused_module() -> ModuleType | None:
    try:
        from slimsched.models.slimresnet import fused
    except ImportError:
        return None
    return fused


def fused_kernels(tensor: Tensor) -> ModuleType | None:
    """Return the module of fused kernels if it supports this tensor's device; None means plain PyTorch."""
    return _fused_module() if tensor.is_cuda else None


def group_norm(
    x: Tensor, affine: Tensor, *, row: int, group: int, residual: Tensor | None = None, relu: bool = False
) -> Tensor:
    """Compute relu(gamma (x - mean) / std + beta + residual) over groups of `group` channels.

    `affine` is (rows, 2, channels); `affine[row]` holds gamma and beta.
    """
    channels = x.shape[1]
    fused = fused_kernels(x)
    if fused is not None and fused.fits(x, group):
        y: Tensor = fused.FusedNorm.apply(x, residual, affine, row, group, EPS, relu)
        return y
    gamma, beta = affine[row, :, :channels].to(x.dtype)
    y = F.group_norm(x, channels // group, gamma, beta, EPS)
    if residual is not None:
        y = y + residual
    return F.relu(y) if relu else y


def halve(x: Tensor) -> Tensor:
    """Average every 2 x 2 pixels: (N, c, H, W) -> (N, c, H/2, W/2)."""
    if not x.is_cuda:
        return F.avg_pool2d(x, 2)
    n, c, h, w = x.shape  # on CUDA, a mean is several times faster than pooling in channels_last
    pixels = x.permute(0, 2, 3, 1).reshape(n, h // 2, 2, w // 2, 2, c)
    return pixels.mean(dim=(2, 4)).permute(0, 3, 1, 2)


def standardize(
    weight: Tensor, gain: Tensor, *, out_channels: int, in_channels: int, dtype: torch.dtype
) -> Tensor:
    """Return the slice (out_channels, in_channels, k, k) of a convolution's weight, standardized.

    Each output channel gets mean 0 and norm `gain`:

        w_hat = gain (w - mean(w)) / sqrt(sum((w - mean(w))^2) + eps)

    Training with group norm starts much faster this way. Serving pays nothing for it, because an instance
    standardizes its weights once when it is loaded.
    """
    fused = fused_kernels(weight)
    if fused is not None:
        sliced: Tensor = fused.FusedStandardize.apply(weight, gain, out_channels, in_channels, EPS, dtype)
        return sliced
    w = weight[:out_channels, :in_channels]
    centred = w - w.mean(dim=(1, 2, 3), keepdim=True)
    scale = (
        gain[:out_channels, None, None, None] * (centred.square().sum((1, 2, 3), keepdim=True) + EPS).rsqrt()
    )
    return (centred * scale).to(dtype)


class SlimConv2d(nn.Module):
    """A convolution without bias, weight-standardized with one learned gain per output channel."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, *, stride: int = 1) -> None:
        super().__init__()
        self.stride, self.padding = stride, kernel_size // 2
        shape = (out_channels, in_channels, kernel_size, kernel_size)
        weight = torch.empty(shape, memory_format=torch.channels_last)
        nn.init.normal_(weight, std=math.sqrt(1 / (in_channels * kernel_size**2)))
        self.weight = nn.Parameter(weight)  # (out, in, k, k)
        self.gain = nn.Parameter(torch.ones(out_channels))  # (out,)

    def forward(self, x: Tensor, out_channels: int) -> Tensor:
        """(N, c, H, W) -> (N, out_channels, H / stride, W / stride)."""
        weight = self.sliced(out_channels, x.shape[1], x.dtype)
        return F.conv2d(x, weight, stride=self.stride, padding=self.padding)

    def sliced(self, out_channels: int, in_channels: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the plain convolution weight of this slice."""
        return standardize(
            self.weight, self.gain, out_channels=out_channels, in_channels=in_channels, dtype=dtype
        )


class SlimLinear(nn.Module):
    """A linear layer that uses its leading inputs and outputs."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_features, in_features).normal_(std=in_features**-0.5))
        self.bias = nn.Parameter(torch.zeros(out_features))

    def forward(self, x: Tensor, out_features: int | None = None) -> Tensor:
        """(..., c) -> (..., out_features); all outputs by default."""
        weight = self.weight[:out_features, : x.shape[-1]].to(x.dtype)
        return F.linear(x, weight, self.bias[:out_features].to(x.dtype))


class SlimGroupNorm(nn.Module):
    """Group norm over groups of 8 channels; each width has its own gamma and beta.

    Because groups have a fixed size, a channel's statistics do not depend on how many other channels run.
    """

    def __init__(self, channels: int, *, widths: int, gamma: float = 1.0) -> None:
        super().__init__()
        affine = torch.zeros(widths, 2, channels)
        affine[:, 0] = gamma
        self.affine = nn.Parameter(affine)  # (widths, gamma and beta, channels)

    def forward(
        self, x: Tensor, width_index: int, *, residual: Tensor | None = None, relu: bool = False
    ) -> Tensor:
        """(N, c, H, W) -> (N, c, H, W), with optional residual sum and ReLU."""
        return group_norm(x, self.affine, row=width_index, group=GROUP_CHANNELS, residual=residual, relu=relu)


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


# -- The parts of a segment that is loaded at one width.


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


# -- The network.


class SlimSegment(SlimNetworkSegment):
    """One quarter of the network; the first holds the stem, the last the classifier."""

    shape: NetworkShape

    def __init__(self, shape: NetworkShape, index: int) -> None:
        super().__init__(shape, index)
        channels = shape.channels[index]
        self.stem = SlimConv2d(3, channels, 3) if index == 0 else None
        self.stem_norm = SlimGroupNorm(channels, widths=len(WIDTHS)) if index == 0 else None
        into = shape.channels[max(index - 1, 0)]
        self.blocks = nn.ModuleList(
            SlimBlock(into if block == 0 else channels, channels, project=block == 0 and index > 0)
            for block in range(shape.blocks[index])
        )
        self.classifier = SlimLinear(channels, shape.classes) if index == SEGMENTS - 1 else None

    def run(self, x: Tensor, width: float) -> Tensor:
        """Normalized images or the previous segment's activation -> activation; logits after the last."""
        if self.stem is not None and self.stem_norm is not None:
            out = int(self.shape.channels[0] * width)
            x = self.stem_norm(self.stem(x, out), WIDTHS.index(width), relu=True)
        for block in self.blocks:
            x = block(x, width)
        if self.classifier is not None:
            x = self.classifier(x.mean(dim=(2, 3), dtype=torch.float32))
        return x

    def layers_at(self, width: float, previous: float | None) -> list[nn.Module]:
        """Fold the layers for the output of the previous segment at width `previous`."""
        if (previous is None) != (self.index == 0):
            raise WidthError(
                f"segment {self.index} with previous width {previous}: the first segment has none, "
                "every other needs one"
            )
        if previous is not None:
            check_width(previous)
        out, row = self.shape.channels_at(self.index, width), WIDTHS.index(width)
        into = self.shape.channels_at(self.index - 1, previous)
        layers: list[nn.Module] = []
        if self.stem is not None and self.stem_norm is not None:
            layers.append(FoldedConv(self.stem, self.stem_norm, into=into, out=out, row=row))
            into = out
        for block in self.blocks:
            assert isinstance(block, SlimBlock)
            layers.append(FoldedBlock(block, into=into, width=width))
            into = out
        if self.classifier is not None:
            layers.append(FoldedClassifier(self.classifier, into=out))
        return layers


class SlimResNet(SlimNetwork):
    """The whole network."""

    shape: NetworkShape

    def __init__(self, shape: NetworkShape = SLIM_RESNET) -> None:
        if any(channels % (GROUP_CHANNELS * len(WIDTHS)) for channels in shape.channels):
            raise DataError(
                f"channels {shape.channels} do not split into groups of {GROUP_CHANNELS} at every width; "
                f"use multiples of {GROUP_CHANNELS * len(WIDTHS)}"
            )
        super().__init__(shape, (SlimSegment(shape, index) for index in range(SEGMENTS)))
