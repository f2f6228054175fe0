"""Turns a model folder into a model: imports the operator's code, builds the model, loads the weights.

Networks that `slim model train` wrote are built by their shape or card instead.
"""

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from slimsched.core.config import DataError
from slimsched.core.plugins import run_file
from slimsched.models.elastic import ElasticModel, ModelError, users_code
from slimsched.models.network import NotDrawn, SlimNetwork, Trained
from slimsched.models.package import (
    CARD,
    Description,
    Shape,
    is_trained,
    read_card,
    read_description,
    read_spec,
)
from slimsched.models.shipped import shipped_folder
from slimsched.models.slimresnet.elastic import FoldedModel, SlimResNetModel
from slimsched.models.slimresnet.resnet import SlimResNet
from slimsched.models.slimresnet.shipped import CARD as SHIPPED_CARD
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit
from slimsched.models.spec import SLIMRESNET, ModelSpec


def load_model(folder: Path) -> ElasticModel:
    """Import a model's code and load its weights; the result is ready to run (in evaluation mode).

    The code runs with the rights of this process: load only folders that you trust.
    """
    if is_trained(folder):
        return trained_model(folder)
    return build_model(folder, read_description(folder), read_spec(folder))


def trained_model(folder: Path | None = None, *, precision: torch.dtype | None = None) -> FoldedModel:
    """Load a folder that `slim model train` wrote; the shipped network when no folder is given."""
    return folded(load(folder), name=SLIMRESNET if folder is None else None, precision=precision)


def folded(trained: Trained, *, name: str | None = None, precision: torch.dtype | None = None) -> FoldedModel:
    """Make a trained network ready to run, at every width."""
    kind = SlimResNetModel if isinstance(trained.net, SlimResNet) else FoldedModel
    return kind(trained, name=name, precision=precision)


def build(shape: Shape) -> SlimNetwork:
    """Make a new network of this shape."""
    return SlimVit(shape) if isinstance(shape, VitShape) else SlimResNet(shape)


def load(folder: Path | None = None) -> Trained:
    """Load a network from a training folder or by its shipped name; the default model when none is given."""
    at = SHIPPED_CARD if folder is None else (shipped_folder(str(folder)) or folder) / CARD
    card, weights = read_card(at), at.with_suffix(".safetensors")
    with NotDrawn():
        net = build(card.shape)
    try:
        digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read weights {weights}: {error.strerror}") from None
    if digest != card.weights_sha256:
        raise DataError(
            f"{weights} is damaged: SHA-256 {digest[:12]}…, its card says {card.weights_sha256[:12]}…; "
            "install the package again or copy the file again"
        )
    load_weights(weights, net.state_dict())
    return Trained(net=net.requires_grad_(False).eval(), card=card)


_loads = count()


def build_model(folder: Path, description: Description, spec: ModelSpec) -> ElasticModel:
    """Run the folder's build function, check its result, and load the weights into it."""
    build = find_build(folder, description.code)
    with users_code(f"building model '{spec.name}'"):
        model = build(spec) if inspect.signature(build).parameters else build()
    if not isinstance(model, ElasticModel):
        raise ModelError(
            f"{description.code} in {folder} returned {type(model).__name__}, not an ElasticModel",
            remedy="return one of the adapters, or a subclass of slimsched.models.elastic.ElasticModel",
        )
    check_spec(getattr(model, "spec", None), spec, description.code)
    for module in model.modules():
        module.requires_grad_(False).eval()
    if description.weights is not None:
        load_weights(folder / description.weights, model.weights())
    return model


def find_build(folder: Path, code: str) -> Callable[..., Any]:
    """Find the function that `code` names: 'model.py:build' in the folder, or 'package.module:function'."""
    source, colon, name = code.partition(":")
    if not (source and colon and name):
        raise ModelError(
            f"code = '{code}' in {folder} is not understood",
            remedy='write "model.py:build" or "package.module:function"',
        )
    with users_code(f"importing {source} of {folder}"):
        module = _import_file(folder / source) if source.endswith(".py") else _import_dotted(source)
    build = getattr(module, name, None)
    if not callable(build):
        raise ModelError(
            f"{source} of {folder} has no function '{name}'", remedy=f"define {name}(spec) there"
        )
    function: Callable[..., Any] = build
    return function


def check_spec(given: ModelSpec | None, wanted: ModelSpec, code: str) -> None:
    """Raise ModelError if the spec of the code differs from model.toml, and name the difference."""
    if given is None:
        raise ModelError(
            f"the model that {code} returns has no spec",
            remedy="take the spec as build(spec) and set self.spec",
        )
    for name in ModelSpec.__struct_fields__:
        ours, theirs = getattr(wanted, name), getattr(given, name)
        if ours != theirs:
            raise ModelError(
                f"model.toml and {code} disagree about {name}: {_short(ours)} in model.toml, "
                f"{_short(theirs)} in the code",
                remedy="write build(spec) and use the spec that it is given",
            )


def load_weights(path: Path, wanted: Mapping[str, Tensor]) -> None:
    """Copy every tensor of a file into the model; names and shapes must be the same on both sides."""
    try:
        given = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"cannot read weights {path} ({error})",
            remedy="write them with safetensors.torch.save_file(model.weights(), path)",
        ) from None
    if missing := sorted(wanted.keys() - given.keys()):
        raise ModelError(
            f"{path} lacks tensor '{missing[0]}'{_more(missing)}, which the model has",
            remedy="save the weights of this model again",
        )
    if extra := sorted(given.keys() - wanted.keys()):
        raise ModelError(
            f"{path} holds tensor '{extra[0]}'{_more(extra)}, which the model does not have",
            remedy="save the weights of this model again",
        )
    for name, tensor in wanted.items():
        if tensor.shape != given[name].shape:
            raise ModelError(
                f"{path}: tensor '{name}' has shape {tuple(given[name].shape)}, "
                f"but the model needs {tuple(tensor.shape)}",
                remedy="build the model with the sizes that it was trained with",
            )
        if tensor.is_floating_point() != given[name].is_floating_point():
            raise ModelError(
                f"{path}: tensor '{name}' is {given[name].dtype}, but the model needs {tensor.dtype}",
                remedy="save the weights of this model again",
            )
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(given[name])


def _import_file(path: Path) -> Any:
    """Import a file as a package with a new name, so that `from .layers import …` finds its folder."""
    if not path.is_file():
        raise ModelError(f"there is no file {path}", remedy="correct code = … in model.toml")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    return run_file(path, f"slim_model_{place}_{next(_loads)}", [str(path.parent)])


def _import_dotted(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise ModelError(
            f"there is no module '{name}'",
            remedy="install the package it is in, or correct code = … in model.toml",
        ) from None


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 120 else f"{text[:120]}…"
