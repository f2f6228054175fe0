"""Narrower layers made of views: the leading outputs, inputs or heads of a wider layer's weights.

Views take no extra memory. Slices are made when a segment is loaded, after the weights are in place.
"""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812


def sliced_linear(linear: nn.Linear, *, out: int | None = None, into: int | None = None) -> nn.Linear:
    """Return a linear layer that uses the leading outputs and inputs of another."""
    out, into = out or linear.out_features, into or linear.in_features
    narrow = nn.Linear(into, out, bias=linear.bias is not None, device="meta")
    narrow.weight = _view(linear.weight[:out, :into])
    if linear.bias is not None:
        narrow.bias = _view(linear.bias[:out])
    return narrow


class SlicedAttention(nn.Module):
    """The leading heads of an nn.MultiheadAttention; same inputs and outputs, batch first.

    Head h uses rows [h·d, (h+1)·d) of the query, key and value weights and the same columns of the output.
    """

    batch_first = True
    in_proj_bias = None  # keeps nn.TransformerEncoderLayer from its fast path, which reads weights itself

    def __init__(self, attention: nn.MultiheadAttention, heads: int) -> None:
        super().__init__()
        size = attention.embed_dim
        used = heads * attention.head_dim
        assert attention.in_proj_weight is not None
        self.heads = self.num_heads = heads
        self.query, self.key, self.value = (
            _linear(
                attention.in_proj_weight[start : start + used],
                None if attention.in_proj_bias is None else attention.in_proj_bias[start : start + used],
            )
            for start in (0, size, 2 * size)
        )
        self.out = _linear(attention.out_proj.weight[:, :used], attention.out_proj.bias)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *_: Any, attn_mask: Tensor | None = None, **__: Any
    ) -> tuple[Tensor, None]:
        """(N, T, size) three times -> (N, T, size), and no attention weights."""
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)  # (N, heads, T, d)
            for layer, x in ((self.query, query), (self.key, key), (self.value, value))
        )
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        return self.out(mixed.transpose(1, 2).flatten(2)), None


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    layer.weight = _view(weight)
    if bias is not None:
        layer.bias = _view(bias)
    return layer


def _view(tensor: Tensor) -> nn.Parameter:
    """Make a parameter that uses the same memory."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


def leading(count: int, share: float) -> int:
    """Return how many of `count` heads or channels a share keeps; at least one."""
    return max(1, round(count * share))
