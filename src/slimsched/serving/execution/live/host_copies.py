"""Host copies of weights: what a device lets go of when an instance is unloaded, and gets back on loading.

Weights of a served model never change, so each is copied to the host once, the first time it leaves the
device.
"""

from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

HOST = torch.device("cpu")


class HostCopies:
    """Moves the weights of modules between a device and the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: WeakKeyDictionary[nn.Module, dict[str, Tensor]] = WeakKeyDictionary()

    def off_load(self, module: nn.Module) -> None:
        """Let the device's copy of a module's weights go."""
        for part, name, tensor in _weights(module):
            if tensor.device.type != HOST.type:
                _put(part, name, self._copy(part, name, tensor))

    def load(self, module: nn.Module) -> None:
        """Copy a module's weights to the device, unless they are there."""
        for part, name, tensor in _weights(module):
            if tensor.device.type != self._device.type:
                _put(part, name, self._copy(part, name, tensor).to(self._device))

    def _copy(self, part: nn.Module, name: str, tensor: Tensor) -> Tensor:
        """Return a weight on the host; it is copied there the first time only."""
        copies = self._copies.setdefault(part, {})
        if name not in copies:
            copies[name] = tensor.detach().to(HOST)
        return copies[name]


def _weights(module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """List every weight with the submodule that holds it, and its name there."""
    for part in module.modules():
        for name, tensor in [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]:
            yield part, name, tensor


def _put(part: nn.Module, name: str, tensor: Tensor) -> None:
    if name in part._parameters:
        part.get_parameter(name).data = tensor
    else:
        part._buffers[name] = tensor
