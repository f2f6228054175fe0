"""torchvision's ViT-B/16, its attention heads and feed-forward layers nested, cut into four segments."""

import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, vit_b_16

from slimsched import ModelSpec, Nested


class Embed(nn.Module):
    def __init__(self, vit: VisionTransformer) -> None:
        super().__init__()
        self.patch, self.token, self.place = vit.conv_proj, vit.class_token, vit.encoder.pos_embedding

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patch(images).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(len(patches), -1, -1), patches], dim=1) + self.place


class First(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0]


def build(spec: ModelSpec) -> Nested:
    torch.manual_seed(0)  # random weights: train them, then name them in model.toml
    vit = vit_b_16()
    nn.init.normal_(vit.heads.head.weight, std=0.02)  # torchvision starts it at zero
    net = nn.Sequential(Embed(vit), *vit.encoder.layers, vit.encoder.ln, First(), vit.heads)
    cut = [["0", "1", "2", "3"], ["4", "5", "6"], ["7", "8", "9"], ["10", "11", "12", "13", "14", "15"]]
    return Nested(spec, net, cut=cut, hidden=[("0", "3")], prepare=lambda x: x / 127.5 - 1)
