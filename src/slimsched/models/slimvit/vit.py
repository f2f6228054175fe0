"""SlimViT: convolutions make tokens, then transformer blocks in four segments, each at a width of its own.

images -> [tokenizer, blocks] -> [blocks] -> [blocks] -> [blocks, pool, classifier] -> logits

Layers store weights once, and each call uses the leading heads and units. A segment loaded at one width is an
instance: its weights are sliced, scaled and standardized once and never change, so callers can share it.
"""

from collections.abc import Callable
from copy import deepcopy
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.core.config import DataError
from slimsched.models.network import SlimNetwork, SlimNetworkSegment
from slimsched.models.slimresnet.resnet import (
    GROUP_CHANNELS,
    FoldedBlock,
    FoldedConv,
    SlimBlock,
    SlimConv2d,
    SlimGroupNorm,
)
from slimsched.models.slimvit.shape import SLIM_VIT, VitShape
from slimsched.models.width import SEGMENTS, WIDTHS

# -- Sliceable parts of a transformer.
#
# Tokens have the same length at every width, so all widths share their layer norms. Each width has its own
# scale for what a branch adds to the tokens. It is part of the small output matrix and costs nothing per
# token.


BlockFunction = Callable[[Tensor, tuple[Tensor, ...], tuple[Tensor, ...], int], Tensor]
"""Computes a block from tokens, the plain weights of attention and feed-forward layers, and the heads."""


class SlimAttention(nn.Module):
    """Multi-head self-attention that uses its leading heads."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, dim // heads
        self.norm = nn.LayerNorm(dim)
        self.qkv_weight = nn.Parameter(torch.empty(3, dim, dim))  # (q k v, heads * head_dim, dim)
        self.qkv_bias = nn.Parameter(torch.zeros(3, dim))
        self.out_weight = nn.Parameter(torch.empty(dim, dim))  # (dim, heads * head_dim)
        self.out_bias = nn.Parameter(torch.zeros(dim))
        self.scale = nn.Parameter(torch.ones(len(WIDTHS), dim))
        nn.init.trunc_normal_(self.qkv_weight, std=0.02)
        nn.init.trunc_normal_(self.out_weight, std=0.02)

    def sliced(self, width: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the plain weights of this slice: norm, projection to queries, keys and values, output."""
        inner = int(self.heads * width) * self.head_dim
        scale = self.scale[WIDTHS.index(width)]
        return (
            self.norm.weight.to(dtype),
            self.norm.bias.to(dtype),
            self.qkv_weight[:, :inner].to(dtype).flatten(0, 1),  # (3 inner, dim)
            self.qkv_bias[:, :inner].to(dtype).flatten(),
            (scale[:, None] * self.out_weight[:, :inner]).to(dtype),  # (dim, inner)
            (scale * self.out_bias).to(dtype),
        )


class SlimFeedForward(nn.Module):
    """Two linear layers with a GELU between them, using the leading hidden units."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.norm = nn.LayerNorm(dim)
        self.in_weight = nn.Parameter(torch.empty(hidden, dim))
        self.in_bias = nn.Parameter(torch.zeros(hidden))
        self.out_weight = nn.Parameter(torch.empty(dim, hidden))
        self.out_bias = nn.Parameter(torch.zeros(dim))
        self.scale = nn.Parameter(torch.ones(len(WIDTHS), dim))
        nn.init.trunc_normal_(self.in_weight, std=0.02)
        nn.init.trunc_normal_(self.out_weight, std=0.02)

    def sliced(self, width: float, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the plain weights of this slice: norm, first layer, second layer."""
        hidden = int(self.hidden * width)
        scale = self.scale[WIDTHS.index(width)]
        return (
            self.norm.weight.to(dtype),
            self.norm.bias.to(dtype),
            self.in_weight[:hidden].to(dtype),
            self.in_bias[:hidden].to(dtype),
            (scale[:, None] * self.out_weight[:, :hidden]).to(dtype),
            (scale * self.out_bias).to(dtype),
        )


class SlimTransformerBlock(nn.Module):
    """x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = SlimAttention(dim, heads)
        self.feed_forward = SlimFeedForward(dim, hidden)

    def forward(self, x: Tensor, width: float, function: BlockFunction | None = None) -> Tensor:
        """(N, tokens, dim) -> (N, tokens, dim)."""
        attention = self.attention.sliced(width, x.dtype)
        feed_forward = self.feed_forward.sliced(width, x.dtype)
        return (function or run_block)(x, attention, feed_forward, int(self.attention.heads * width))


def run_block(
    x: Tensor, attention: tuple[Tensor, ...], feed_forward: tuple[Tensor, ...], heads: int
) -> Tensor:
    """Compute a block from tokens (N, T, dim) and the plain weights of its slice."""
    images, tokens, dim = x.shape
    gamma, beta, qkv_weight, qkv_bias, out_weight, out_bias = attention
    qkv = F.linear(F.layer_norm(x, (dim,), gamma, beta), qkv_weight, qkv_bias)  # (N, T, 3 inner)
    queries, keys, values = qkv.view(images, tokens, 3, heads, -1).permute(
        2, 0, 3, 1, 4
    )  # (N, heads, T, head)
    mixed = F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)  # (N, T, inner)
    x = x + F.linear(mixed, out_weight, out_bias)
    gamma, beta, in_weight, in_bias, out_weight, out_bias = feed_forward
    units = F.gelu(F.linear(F.layer_norm(x, (dim,), gamma, beta), in_weight, in_bias))  # (N, T, hidden)
    return x + F.linear(units, out_weight, out_bias)


@cache
def compiled_block() -> BlockFunction:
    """Return `run_block` compiled once per number of heads; all blocks of a network share it."""
    compiled: BlockFunction = torch.compile(run_block, dynamic=False)
    return compiled


# -- A segment loaded at one width.


class FoldedTokenizer(nn.Module):
    """The tokenizer at one width, with plain convolution weights."""

    weight: Tensor
    positions: Tensor

    def __init__(self, tokenizer: "SlimTokenizer", width: float) -> None:
        super().__init__()
        first, second = tokenizer.shape.stem_at(width)
        row = WIDTHS.index(width)
        self.stem = FoldedConv(tokenizer.stem, tokenizer.stem_norm, into=3, out=first, row=row)
        self.large = FoldedBlock(tokenizer.large, into=first, width=width)
        self.small = FoldedBlock(tokenizer.small, into=first, width=width)
        self.stride, self.padding = tokenizer.to_tokens.stride, tokenizer.to_tokens.padding
        weight = tokenizer.to_tokens.sliced(tokenizer.shape.dim, second).detach()
        self.register_buffer("weight", weight.contiguous(memory_format=torch.channels_last))
        self.register_buffer("positions", tokenizer.positions.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, S, S) -> (N, tokens, dim)."""
        x = self.small(self.large(self.stem(x)))
        x = F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        return x.flatten(2).transpose(1, 2) + self.positions


class FoldedTransformerBlock(nn.Module):
    """A transformer block with the plain weights of one width."""

    def __init__(self, block: SlimTransformerBlock, width: float) -> None:
        super().__init__()
        self.heads = int(block.attention.heads * width)
        for name, tensors in (
            ("attention", block.attention.sliced(width, torch.float32)),
            ("feed_forward", block.feed_forward.sliced(width, torch.float32)),
        ):
            for index, tensor in enumerate(tensors):
                self.register_buffer(f"{name}_{index}", tensor.detach().clone().contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, dim) -> (N, tokens, dim)."""
        return run_block(x, self._weights("attention"), self._weights("feed_forward"), self.heads)

    def _weights(self, name: str) -> tuple[Tensor, ...]:
        return tuple(self.get_buffer(f"{name}_{index}") for index in range(6))


# -- The network.


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
    """Sequence pooling: a layer gives each token a weight, and the weighted mean is classified.

    It is the same at every width, and computes in single precision whatever its weights are kept in.
    """

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
        x = F.layer_norm(x.float(), self.norm.normalized_shape, *_in_float32(self.norm))
        weights = F.softmax(F.linear(x, *_in_float32(self.weigh)), dim=1)  # (N, tokens, 1)
        return F.linear((weights * x).sum(dim=1), *_in_float32(self.classifier))


def _in_float32(layer: nn.LayerNorm | nn.Linear) -> tuple[Tensor, Tensor]:
    return layer.weight.float(), layer.bias.float()


class VitSegment(SlimNetworkSegment):
    """One quarter of the network; the first holds the tokenizer, the last the classifier."""

    def __init__(self, shape: VitShape, index: int) -> None:
        super().__init__(shape, index)
        self.compiled = False
        self.tokenizer = SlimTokenizer(shape) if index == 0 else None
        self.blocks = nn.ModuleList(
            SlimTransformerBlock(shape.dim, shape.heads, shape.hidden) for _ in range(shape.blocks[index])
        )
        self.pool = SlimPool(shape.dim, shape.classes) if index == SEGMENTS - 1 else None

    def run(self, x: Tensor, width: float) -> Tensor:
        """Normalized images or tokens -> tokens; logits after the last segment."""
        if self.tokenizer is not None:
            x = self.tokenizer(x, width)
        function = compiled_block() if self.compiled else None
        for block in self.blocks:
            x = block(x, width, function)
        return x if self.pool is None else self.pool(x)

    def layers_at(self, width: float, previous: float | None) -> list[nn.Module]:
        """Fold the layers; the previous width does not matter."""
        layers: list[nn.Module] = []
        if self.tokenizer is not None:
            layers.append(FoldedTokenizer(self.tokenizer, width))
        for block in self.blocks:
            assert isinstance(block, SlimTransformerBlock)
            layers.append(FoldedTransformerBlock(block, width))
        if self.pool is not None:
            layers.append(deepcopy(self.pool).requires_grad_(False))
        return layers


class SlimVit(SlimNetwork):
    """The whole network."""

    shape: VitShape

    def __init__(self, shape: VitShape = SLIM_VIT) -> None:
        check_shape(shape)
        super().__init__(shape, (VitSegment(shape, index) for index in range(SEGMENTS)))

    def use_compiled_blocks(self) -> None:
        """Run the transformer blocks through torch.compile, which fuses norms, GELU and sums."""
        for segment in self.segments:
            assert isinstance(segment, VitSegment)
            segment.compiled = True


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
