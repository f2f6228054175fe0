"""The interface of a served model: one callable per segment and choice, all sharing weights."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from slimsched.models.figures import ModelFigures
from slimsched.models.spec import ModelSpec

Tensors = tuple[Tensor, ...]
"""Tensors of one batch, each with the batch dimension first. Inputs and outputs come in the spec's order."""

Segment = Callable[[Tensors], Tensors]
"""One segment at one choice. It keeps no state between calls, so several can run at once."""


class ElasticModel:
    """A model that can run narrower, shallower or smaller.

    Subclasses set `spec` and write `segment`; the other methods may stay as they are. A request passes
    `prepare`, then the segments of its plan, then `finish`. All run in the server's process.
    """

    spec: ModelSpec

    def segment(self, index: int, choice: str, previous: str | None) -> Segment:
        """Return one segment at one choice, ready to run; `previous` is the choice of the segment before.

        The callable must not depend on anything that another choice changes: two choices run at once.
        """
        raise TypeError(f"{type(self).__name__} must define segment(index, choice, previous)")

    def prepare(self, raw: Tensors) -> Tensors:
        """Turn what clients send into what the first segment takes: resize, normalize, change type."""
        return raw

    def finish(self, last: Tensors) -> Tensors:
        """Turn what a plan's last segment gives into the outputs that clients see."""
        return last

    def confidence(self, last: Tensors) -> Tensor | None:
        """Say how sure each answer is, by what a plan's last segment gives: one number per row.

        A higher number means that the answer is more likely right; the scale is free. With it, the server
        can stop when it is sure and go on with a wider plan when it is not. None, the default, means that
        the model cannot say. Segments of a model that can must not change their inputs in place.
        """
        return None

    def place(self, device: torch.device) -> None:
        """Move the weights to a device. A server calls this once, before it asks for segments."""
        for module in self.modules():
            module.eval().to(device)

    def modules(self) -> list[nn.Module]:
        """List the PyTorch modules that hold the weights; by default those among the attributes."""
        return [value for value in vars(self).values() if isinstance(value, nn.Module)]

    def weights(self) -> dict[str, Tensor]:
        """Name every tensor that `weights.safetensors` holds; loading copies into these very tensors.

        With one module these are the names of its state_dict; with several, attribute names come first.
        """
        named = {name: value for name, value in vars(self).items() if isinstance(value, nn.Module)}
        if len(named) == 1:
            return dict(next(iter(named.values())).state_dict())
        return {
            f"{name}.{key}": tensor
            for name, module in named.items()
            for key, tensor in module.state_dict().items()
        }

    def whole(self, plan: tuple[str, ...]) -> Segment | None:
        """Return the uncut model at a plan, for `slim model check` to compare with; None if there is none."""
        return None

    def examples(self, count: int) -> Tensors | None:
        """Return typical inputs for dry runs; None means random inputs."""
        return None

    def figures(self) -> ModelFigures | None:
        """Return the model's figures by formula; None lets `slim model check` measure them."""
        return None

    @property
    def is_confident(self) -> bool:
        """Whether the model says how sure it is."""
        return type(self).confidence is not ElasticModel.confidence


def margin(logits: Tensor) -> Tensor:
    """Return the margin between the two most likely classes, (N, classes) -> (N,): a good confidence."""
    best = logits.float().softmax(dim=1).topk(2, dim=1).values
    return best[:, 0] - best[:, 1]
