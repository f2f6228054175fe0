"""A segment of SlimViT loaded at one width: its weights sliced, scaled and standardized once.

An instance never changes after loading, so several callers can share one.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet.instance import FoldedBlock, FoldedConv
from slimsched.models.slimvit.layers import SlimTransformerBlock, run_block
from slimsched.models.width import WIDTHS, check_width

if TYPE_CHECKING:
    from slimsched.models.slimvit.vit import SlimPool, SlimTokenizer, VitSegment


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
        x = self.small(self.large(self.stem(x.contiguous(memory_format=torch.channels_last))))
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


class FoldedPool(nn.Module):
    """The last norm, sequence pooling and the classifier, as buffers."""

    def __init__(self, pool: "SlimPool") -> None:
        super().__init__()
        self.dim = pool.norm.normalized_shape[0]
        for name, tensor in pool.state_dict().items():
            self.register_buffer(name.replace(".", "_"), tensor.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, dim) -> (N, classes) in single precision."""
        x = F.layer_norm(x.float(), (self.dim,), *self._pair("norm"))
        weights = F.softmax(F.linear(x, *self._pair("weigh")), dim=1)  # (N, tokens, 1)
        return F.linear((weights * x).sum(dim=1), *self._pair("classifier"))

    def _pair(self, name: str) -> tuple[Tensor, Tensor]:
        return self.get_buffer(f"{name}_weight").float(), self.get_buffer(f"{name}_bias").float()


class VitInstance(nn.Module):
    """One segment at one width."""

    def __init__(self, segment: "VitSegment", width: float) -> None:
        super().__init__()
        check_width(width)
        self.shape, self.segment, self.width = segment.shape, segment.index, width
        layers: list[nn.Module] = []
        if segment.tokenizer is not None:
            layers.append(FoldedTokenizer(segment.tokenizer, width))
        for block in segment.blocks:
            assert isinstance(block, SlimTransformerBlock)
            layers.append(FoldedTransformerBlock(block, width))
        if segment.pool is not None:
            layers.append(FoldedPool(segment.pool))
        self.layers = nn.Sequential(*layers)
        self.eval()

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Images or tokens in this instance's precision -> tokens (logits after the last segment)."""
        y: Tensor = self.layers(x)
        return y

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that this instance's weights take."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())
