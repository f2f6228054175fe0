"""Every key's folded segment on one device: the weights that stay, each there once."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from slimsched.models.slimresnet.instance import FoldedBlock, FoldedConv, SegmentInstance, fold
from slimsched.models.slimresnet.weights import TrainedModel
from slimsched.models.width import SEGMENTS, WIDTHS
from slimsched.serving.domain.key import KEYS, Key

STEM_CHANNELS = 8  # tensor cores want input channels in eights: the colours are padded with zeros


class ResidentSegments:
    """Convolution weights in `dtype`, norms and classifier in single precision; callable by key.

    Only a segment's first block depends on the previous width: what follows it is shared by its keys.
    """

    def __init__(self, model: TrainedModel, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = model.card.shape, device, dtype
        colours = model.card.colours
        mean, std = torch.tensor(colours.mean), torch.tensor(colours.std)
        self._scale, self._shift = (1.0 / (255.0 * std)).to(device), (-mean / std).to(device)
        self._segments: dict[Key, SegmentInstance] = {}
        for segment in range(SEGMENTS):
            for width in WIDTHS:
                self._add(model, segment, width)

    def __call__(self, key: Key, inputs: Tensor) -> Tensor:
        """Raw images or the previous segment's activation -> activation; logits after the last segment."""
        out: Tensor = self._segments[key].layers(self.normalized(inputs) if key.segment == 0 else inputs)
        return out

    def input_shape(self, key: Key) -> tuple[int, int, int]:
        """Channels, height and width of what a key takes."""
        side = self.shape.image_size if key.segment == 0 else self.shape.side(key.segment - 1)
        return self.shape.channels_at(key.segment - 1, key.previous), side, side

    def normalized(self, raw: Tensor) -> Tensor:
        """uint8 (N, 3, H, W) -> (N, STEM_CHANNELS, H, W), channels_last."""
        count, _, height, width = raw.shape
        out = torch.empty(
            (count, STEM_CHANNELS, height, width),
            device=raw.device,
            dtype=self.dtype,
            memory_format=torch.channels_last,
        )
        if raw.is_cuda:
            from slimsched.serving.execution.live.fused_images import normalize

            normalize(raw, out, self._scale, self._shift)  # type: ignore[no-untyped-call]
        else:
            out.zero_()
            scale, shift = self._scale.view(1, 3, 1, 1), self._shift.view(1, 3, 1, 1)
            out[:, :3] = torch.addcmul(shift, raw.float(), scale)
        return out

    @property
    def weight_bytes(self) -> int:
        """Memory of all weights, those that keys share counted once."""
        tensors = {t.data_ptr(): t for one in self._segments.values() for t in one.buffers()}
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())

    def _add(self, model: TrainedModel, segment: int, width: float) -> None:
        first: SegmentInstance | None = None
        for previous in WIDTHS if segment else (None,):
            one = fold(model.net, segment, width=width, previous=previous)
            if first is None:
                first = one
            else:
                _share(one, first)
            self._segments[KEYS[segment, width, previous]] = self._moved(one)

    def _moved(self, one: SegmentInstance) -> SegmentInstance:
        for layer in one.modules():
            if isinstance(layer, FoldedConv):
                weight = layer.weight
                if weight.shape[1] == 3:
                    weight = F.pad(weight, (0, 0, 0, 0, 0, STEM_CHANNELS - 3))
                layer.weight = weight.to(self.dtype).contiguous(memory_format=torch.channels_last)
        return one.to(self.device)


def _share(one: SegmentInstance, first: SegmentInstance) -> None:
    """Let a key's segment use another's layers where the previous width makes no difference."""
    block, shared = one.layers[0], first.layers[0]
    assert isinstance(block, FoldedBlock)
    assert isinstance(shared, FoldedBlock)
    block.second = shared.second
    one.layers = nn.Sequential(block, *list(first.layers)[1:])
