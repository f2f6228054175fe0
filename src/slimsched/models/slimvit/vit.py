"""SlimViT: convolutions make tokens, then transformer blocks in four segments, each at a width of its own.

images -> [tokenizer, blocks] -> [blocks] -> [blocks] -> [blocks, pool, classifier] -> logits
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import DataError
from slimsched.models.network import SlimNetwork
from slimsched.models.slimresnet.layers import GROUP_CHANNELS, SlimConv2d, SlimGroupNorm
from slimsched.models.slimresnet.resnet import SlimBlock
from slimsched.models.slimvit.instance import VitInstance
from slimsched.models.slimvit.layers import SlimTransformerBlock, compiled_block
from slimsched.models.slimvit.shape import SLIM_VIT, VitShape
from slimsched.models.width import SEGMENTS, WIDTHS, check_width


class SlimTokenizer(nn.Module):
    """Residual convolutions at full, then at half resolution; one more makes tokens of fixed length."""

    def __init__(self, shape: VitShape) -> None:
        super().__init__()
        first, second = shape.stem
        self.shape = shape
        self.stem = SlimConv2d(3, first, 3)
        self.stem_norm = SlimGroupNorm(first, widths=len(WIDTHS))
        self.large = SlimBlock(first, first, project=False)
        self.small = SlimBlock(first, second, project=True)
        self.to_tokens = SlimConv2d(second, shape.dim, 3, stride=shape.token_pixels // 2)
        self.positions = nn.Parameter(torch.zeros(1, shape.tokens, shape.dim))
        nn.init.trunc_normal_(self.positions, std=0.02)

    def forward(self, x: Tensor, width: float) -> Tensor:
        """(N, 3, S, S) -> (N, tokens, dim)."""
        first, _ = self.shape.stem_at(width)
        x = self.stem_norm(self.stem(x, first), WIDTHS.index(width), relu=True)
        x = self.small(self.large(x, width), width)
        tokens: Tensor = self.to_tokens(x, self.shape.dim).flatten(2).transpose(1, 2)  # (N, tokens, dim)
        return tokens + self.positions.to(x.dtype)


class SlimPool(nn.Module):
    """Sequence pooling: a layer gives each token a weight, and the weighted mean is classified."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.weigh = nn.Linear(dim, 1)
        self.classifier = nn.Linear(dim, classes)
        for layer in (self.weigh, self.classifier):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, dim) -> (N, classes) in single precision."""
        x = self.norm(x.float())
        weights = F.softmax(self.weigh(x), dim=1)  # (N, tokens, 1)
        logits: Tensor = self.classifier((weights * x).sum(dim=1))
        return logits


class VitSegment(nn.Module):
    """One quarter of the network; the first holds the tokenizer, the last the classifier."""

    def __init__(self, shape: VitShape, index: int) -> None:
        super().__init__()
        self.shape, self.index, self.compiled = shape, index, False
        self.tokenizer = SlimTokenizer(shape) if index == 0 else None
        self.blocks = nn.ModuleList(
            SlimTransformerBlock(shape.dim, shape.heads, shape.hidden) for _ in range(shape.blocks[index])
        )
        self.pool = SlimPool(shape.dim, shape.classes) if index == SEGMENTS - 1 else None

    def forward(self, x: Tensor, width: float) -> Tensor:
        """Normalized images or tokens -> tokens; logits after the last segment."""
        check_width(width)
        check_input(self.shape, self.index, x)
        if self.tokenizer is not None:
            x = self.tokenizer(x, width)
        function = compiled_block() if self.compiled else None
        for block in self.blocks:
            x = block(x, width, function)
        return x if self.pool is None else self.pool(x)


class SlimVit(SlimNetwork):
    """The whole network."""

    shape: VitShape

    def __init__(self, shape: VitShape = SLIM_VIT) -> None:
        super().__init__()
        check_shape(shape)
        self.shape = shape
        self.segments = nn.ModuleList(VitSegment(shape, index) for index in range(SEGMENTS))

    def segment(self, index: int) -> VitSegment:
        """Return one segment, which takes (x, width)."""
        segment = self.segments[index]
        assert isinstance(segment, VitSegment)
        return segment

    def instance(self, segment: int, *, width: float, previous: float | None = None) -> VitInstance:
        """Fold one segment at one width; the previous width does not matter."""
        return VitInstance(self.segment(segment), width)

    def use_compiled_blocks(self, on: bool = True) -> None:
        """Run the transformer blocks through torch.compile, which fuses norms, GELU and sums."""
        for index in range(SEGMENTS):
            self.segment(index).compiled = on


def check_shape(shape: VitShape) -> None:
    """Raise DataError for a shape that does not divide into the four widths."""
    widths = len(WIDTHS)
    if shape.dim % shape.heads or shape.heads % widths or shape.hidden % widths:
        raise DataError(
            f"dim {shape.dim}, heads {shape.heads}, hidden {shape.hidden} do not fit: heads and hidden must "
            f"be multiples of {widths}, and dim a multiple of heads"
        )
    if any(channels % (GROUP_CHANNELS * widths) for channels in shape.stem):
        raise DataError(
            f"stem channels {shape.stem} do not split into groups; use multiples of {GROUP_CHANNELS * widths}"
        )
    if shape.token_pixels not in (2, 4) or shape.image_size % shape.token_pixels:
        raise DataError(
            f"token_pixels {shape.token_pixels} with images of {shape.image_size} pixels: use 2 or 4, and a "
            "multiple of it as the image size"
        )


def check_input(shape: VitShape, segment: int, x: Tensor) -> None:
    """Raise DataError if this segment cannot take a tensor of this shape."""
    side = shape.image_size
    wanted = (3, side, side) if segment == 0 else (shape.tokens, shape.dim)
    if tuple(x.shape[1:]) != wanted:
        sizes = ", ".join(map(str, wanted))
        raise DataError(f"segment {segment} was given shape {tuple(x.shape)}; it takes (N, {sizes})")
