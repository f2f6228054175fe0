"""The fastest form of folded segments on a CPU: weights packed once, bfloat16 where the CPU supports it.

A plain convolution reorders its weights into oneDNN's layout on every call. For small batches that takes as
long as the arithmetic. Packed weights have that layout from the start. The operators used here are the ones
that `torch.compile` emits for frozen convolutions. Where they are missing, plain convolutions run.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet.instance import FoldedConv, SegmentInstance
from slimsched.models.slimresnet.layers import GROUP_CHANNELS
from slimsched.models.slimresnet.operations import EPS

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
