"""A trained SlimViT as an ElasticModel: segments sliced and folded once per width."""

from pathlib import Path

import torch
from torch import Tensor, nn

from slimsched.models import network
from slimsched.models.elastic import ElasticModel, Segment, Tensors, margin
from slimsched.models.network import Trained
from slimsched.models.slimresnet.elastic import scale_and_shift
from slimsched.models.slimvit.shape import VitShape, slimvit_figures, slimvit_spec
from slimsched.models.slimvit.vit import SlimVit, VitInstance
from slimsched.models.spec import ModelFigures

# -- Trained SlimViTs on disk.

TrainedVit = Trained[SlimVit, VitShape]


def load(path: Path) -> TrainedVit:
    """Load the model of a training folder or of its .json."""
    return network.load(path, VitShape, SlimVit)


class SlimVitModel(ElasticModel):
    """Folds a segment's weights once per width; half precision on a GPU, single precision on a CPU."""

    def __init__(self, trained: TrainedVit, *, name: str | None = None) -> None:
        card = trained.card
        self.spec = slimvit_spec(card.shape, (name or card.name).replace("/", "-"), card.classes)
        self.net, self.shape = trained.net, card.shape
        self._scale, self._shift = scale_and_shift(card.colours)
        self._device, self._precision = torch.device("cpu"), torch.float32

    def place(self, device: torch.device) -> None:
        """Fold for this device from now on; the network itself stays where it is."""
        self._device = device
        self._precision = torch.float32 if device.type == "cpu" else torch.bfloat16
        self._scale, self._shift = self._scale.to(device), self._shift.to(device)

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Fold one segment at one width; the previous width does not matter."""
        instance = self.net.instance(index, width=float(choice))
        assert isinstance(instance, VitInstance)
        return VitFolded(instance.to(self._device, self._precision))

    def prepare(self, raw: Tensors) -> Tensors:
        """uint8 (N, 3, S, S) -> normalized, in this model's precision, channels_last."""
        normal = torch.addcmul(self._shift, raw[0].to(torch.float32), self._scale)
        return (normal.to(self._precision).contiguous(memory_format=torch.channels_last),)

    def finish(self, last: Tensors) -> Tensors:
        """Convert the logits to single precision."""
        return (last[0].float(),)

    def confidence(self, last: Tensors) -> Tensor:
        """Return the margin between the two most likely classes."""
        return margin(last[0])

    def figures(self) -> ModelFigures:
        """Compute the figures by formula."""
        return slimvit_figures(self.shape)


class VitFolded:
    """A folded segment that takes and returns tuples of tensors."""

    def __init__(self, instance: VitInstance) -> None:
        self.instance = instance

    def __call__(self, tensors: Tensors) -> Tensors:
        """Images or tokens -> tokens, logits after the last segment."""
        return (self.instance(tensors[0]),)

    def weights(self) -> list[Tensor]:
        """List the folded weights."""
        return list(self.instance.buffers())

    def own_modules(self) -> list[nn.Module]:
        """List the modules with weights of this width: a server may move them to the host and back."""
        return [self.instance]
