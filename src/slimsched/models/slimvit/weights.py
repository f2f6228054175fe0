"""Trained SlimViTs on disk: NAME.safetensors (half precision) beside NAME.json, which describes the model."""

from pathlib import Path

from msgspec import Struct, structs

from slimsched.models.model_files import CardFacts, read_card_of, read_weights, write_card, write_weights
from slimsched.models.slimresnet.weights import card_path
from slimsched.models.slimvit.shape import VitShape
from slimsched.models.slimvit.vit import SlimVit


class VitCard(CardFacts, frozen=True, kw_only=True):
    """Describes a SlimViT and how it was trained."""

    shape: VitShape


class TrainedVit(Struct, frozen=True, kw_only=True):
    """A SlimViT with its card."""

    net: SlimVit
    card: VitCard


def save(folder: Path, name: str, net: SlimVit, card: VitCard) -> VitCard:
    """Write weights in half precision and the card that goes with them."""
    digest = write_weights(folder / f"{name}.safetensors", net, card.name)
    card = structs.replace(card, weights_sha256=digest)
    write_card(folder / f"{name}.json", card)
    return card


def load(path: Path) -> TrainedVit:
    """Load the model of a training folder or of its .json."""
    card: VitCard = read_card_of(card_path(path), VitCard)
    net = SlimVit(card.shape)
    read_weights(card_path(path).with_suffix(".safetensors"), net, card.weights_sha256)
    return TrainedVit(net=net.requires_grad_(False).eval(), card=card)
