"""A small vision transformer whose attention heads and feed-forward layers nest."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched import ModelSpec, Nested

SIZE, HEADS, PATCHES = 64, 8, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
        self.attention = nn.MultiheadAttention(SIZE, HEADS, batch_first=True)
        self.fc1, self.fc2 = nn.Linear(SIZE, 4 * SIZE), nn.Linear(4 * SIZE, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.place = nn.Conv2d(3, SIZE, 8, stride=8), nn.Parameter(torch.zeros(PATCHES, SIZE))

    def forward(self, images: Tensor) -> Tensor:
        return self.patch(images / 127.5 - 1).flatten(2).transpose(1, 2) + self.place


def build(spec: ModelSpec) -> Nested:
    torch.manual_seed(0)  # random weights: train them, then name them in model.toml
    net = nn.Sequential(Embed(), Block(), Block(), Block(), nn.LayerNorm(SIZE), nn.Linear(SIZE, 10))
    cut = [["0", "1"], ["2", "3", "4", "5"]]
    return Nested(spec, net, cut=cut, hidden=[("fc1", "fc2")], finish=lambda logits: logits.mean(dim=1))
