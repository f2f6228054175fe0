"""Chooses the device that a network runs on."""

import torch

from slimsched.core.config import DataError


def pick_device(name: str) -> torch.device:
    """Return the named device; 'auto' is CUDA if there is a CUDA device, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise DataError(f"unknown device '{name}'; use auto, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise DataError("there is no CUDA device here; use --device cpu")
    return device
