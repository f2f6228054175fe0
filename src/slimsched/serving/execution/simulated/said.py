"""What a model says about its answers in a simulation: looked up by example, as it was measured."""

from typing import TypedDict

from slimsched.serving.domain.model import ServedModel
from slimsched.serving.domain.request import Batch


class Said(TypedDict, total=False):
    """How sure the model is of each answer, and the class: 0 for the widest plan's, 1 for another."""

    confidence: tuple[float, ...]
    top: tuple[int, ...]


def said_about(batch: Batch, model: ServedModel) -> Said:
    """Return what the model says about a batch that completes plans which are judged.

    It says nothing about unknown examples.
    """
    known, key = model.measured.confidences, batch.key
    if known is None or not batch.blocks[0].keep or not model.spec.ends(key.last_segment, key.choices[-1]):
        return {}
    confidence, top = [], []
    for block in batch.blocks:
        for request in block.requests:
            plan = model.tree.index[request.path + key.choices]
            if not 0 <= request.example < known.examples:
                return {}
            confidence.append(known.typical(plan, request.example))
            top.append(known.top(plan, request.example))
    return {"confidence": tuple(confidence), "top": tuple(top)}
