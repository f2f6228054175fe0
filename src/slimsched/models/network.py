"""The interface that training and evaluation use: a network of four segments that can run at any width.

A trained network on disk is NAME.safetensors, in half precision, beside NAME.json, which describes it.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct, structs
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

from slimsched.core.config import AccuracyFloor, CountOrZero, DataError, Seconds
from slimsched.models.data.images import Colours
from slimsched.models.package import Shape
from slimsched.models.training.recipe import Recipe
from slimsched.models.width import tuple_index


class SlimNetwork(nn.Module, ABC):
    """A slimmable network; `net(x, widths)` runs any width tuple, `net.segment(i)(x, width)` one segment."""

    shape: Shape
    segments: nn.ModuleList

    def segment(self, index: int) -> nn.Module:
        """Return one segment, which takes (x, width)."""
        segment = self.segments[index]
        assert isinstance(segment, nn.Module)
        return segment

    @abstractmethod
    def instance(
        self, segment: int, *, width: float, previous: float | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Return one segment at one width, ready to run; `previous` is the width of the segment before."""

    def forward(self, x: Tensor, widths: tuple[float, ...]) -> Tensor:
        """(N, 3, H, W) normalized images -> (N, classes) logits."""
        tuple_index(widths)
        for index, width in enumerate(widths):
            x = self.segment(index)(x, width)
        return x


# -- A trained network on disk: NAME.safetensors (half precision) beside NAME.json, which describes the
# network.
#
# Loading checks the file's hash, every tensor's shape and the class count before anything runs.

TRAINED = "model"
"""The name of a network's files in a training folder."""

ShapeT = TypeVar("ShapeT", bound=Shape, covariant=True)
NetT = TypeVar("NetT", bound=SlimNetwork, covariant=True)


class ModelCard(Struct, Generic[ShapeT], frozen=True, kw_only=True):
    """What a network is: its shape and classes, how its images are normalized, and how it was trained.

    `accuracy_percent` was measured on `scored_on`, such as '60 held-out pictures'.
    """

    name: str
    colours: Colours
    classes: tuple[str, ...]
    recipe: Recipe
    epochs: CountOrZero
    training_s: Seconds
    trained_on: str
    weights_sha256: str = ""
    scored_on: str = ""
    accuracy_percent: dict[str, AccuracyFloor] = {}
    notes: tuple[str, ...] = ()
    shape: ShapeT


class Trained(Struct, Generic[NetT, ShapeT], frozen=True, kw_only=True):
    """A network with its card."""

    net: NetT
    card: ModelCard[ShapeT]


def save(folder: Path, name: str, net: SlimNetwork, card: ModelCard[ShapeT]) -> ModelCard[ShapeT]:
    """Write weights in half precision and the card that goes with them; return the card with their hash."""
    digest = _write_weights(folder / f"{name}.safetensors", net, card.name)
    card = structs.replace(card, weights_sha256=digest)
    (folder / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
    return card


def load(path: Path, shape: type[ShapeT], build: Callable[[ShapeT], NetT]) -> Trained[NetT, ShapeT]:
    """Load the network of a training folder or of its .json, ready to run."""
    at = card_path(path)
    card = _read_card(at, shape)
    net = build(card.shape)
    _read_weights(at.with_suffix(".safetensors"), net, card.weights_sha256)
    return Trained(net=net.requires_grad_(False).eval(), card=card)


def card_path(path: Path) -> Path:
    """Return the path of the card in a training folder or beside a weights file."""
    return path / f"{TRAINED}.json" if path.is_dir() else path.with_suffix(".json")


def _write_weights(path: Path, net: nn.Module, name: str) -> str:
    """Write the weights in half precision and return their SHA-256."""
    tensors = {key: value.detach().half().contiguous().cpu() for key, value in net.state_dict().items()}
    raw = save_tensors(tensors, metadata={"name": name})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return hashlib.sha256(raw).hexdigest()


def _read_weights(path: Path, net: nn.Module, sha256: str) -> None:
    """Fill the network with the weights of a file, after checking their hash and shapes."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read weights {path}: {error.strerror}") from None
    if (digest := hashlib.sha256(raw).hexdigest()) != sha256:
        raise DataError(
            f"{path} is damaged: SHA-256 {digest[:12]}…, its card says {sha256[:12]}…; "
            "install the package again or copy the file again"
        )
    try:
        tensors = load_tensors(raw)
    except SafetensorError as error:
        raise DataError(f"{path} is no safetensors file ({error}); copy it again") from None
    wanted = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(wanted.keys() | given.keys()):
        if wanted.get(name) != given.get(name):
            raise DataError(
                f"{path}: {name} has shape {given.get(name)}, but its card needs {wanted.get(name)}"
            )
    net.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})


def _read_card(path: Path, shape: type[ShapeT]) -> ModelCard[ShapeT]:
    kind: type[ModelCard[ShapeT]] = ModelCard[shape]  # type: ignore[valid-type]
    try:
        card = msgspec.json.decode(path.read_bytes(), type=kind)
    except OSError:
        raise DataError(
            f"no model at {path}; name a folder that slim model train wrote, or leave --model out"
        ) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{path} is no model card: {error}") from None
    if len(card.classes) != card.shape.classes:
        raise DataError(
            f"{path}: {len(card.classes)} class names, but the network has {card.shape.classes} classes"
        )
    return card
