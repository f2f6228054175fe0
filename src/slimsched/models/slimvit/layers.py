"""Sliceable parts of a transformer: weights are stored once, and each call uses the leading heads and units.

Tokens have the same length at every width, so all widths share their layer norms. Each width has its own
scale for what a branch adds to the tokens. It is part of the small output matrix and costs nothing per token.
"""

from functools import cache
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.width import WIDTHS


class BlockFunction(Protocol):
    """A function that computes a block from tokens and plain weights."""

    def __call__(
        self, x: Tensor, attention: tuple[Tensor, ...], feed_forward: tuple[Tensor, ...], heads: int
    ) -> Tensor: ...


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
