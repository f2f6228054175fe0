"""A model as clients see it: its tensors, the outputs derived from them, and its plans by name."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slimsched.models.spec import NUMPY, PlanError, TensorSpec
from slimsched.serving.api.refusal import BadRequest, NotFound
from slimsched.serving.domain.model import ServedModel

CLASSES, LABELS = "classes", "labels"
"""Outputs of every classifier beside its own: the number and the name of the class with the largest score."""

NUMBER_BYTES = 32
"""What a number takes on its way into JSON: an object first, then up to 25 characters."""

Outputs = tuple[NDArray[Any], ...]


class ModelFace:
    """What requests to one model may hold and what answers can give."""

    def __init__(self, model: ServedModel) -> None:
        self.model, self.spec = model, model.spec
        self.name, self.version = model.name, model.spec.version
        self.inputs = {tensor.name: tensor for tensor in self.spec.inputs}
        first = self.spec.outputs[0]
        is_classifier = len(first.shape) == 1 and first.datatype.startswith("FP")
        derived = [CLASSES] if is_classifier else []
        derived += [LABELS] if is_classifier and self.spec.labels else []
        self.outputs = (*derived[:1], *(tensor.name for tensor in self.spec.outputs), *derived[1:])
        """The names of all outputs a client may ask for."""
        self.default_outputs = self.outputs[: len(self.outputs) - len(derived[1:])]
        self._place = {tensor.name: place for place, tensor in enumerate(self.spec.outputs)}
        self._label_bytes = 8 + 6 * max((len(label) for label in self.spec.labels), default=0)

    def tensor(self, name: str, outputs: Outputs) -> tuple[str, NDArray[Any] | list[str]]:
        """One output by name: its type, and its values or words."""
        if name in self._place:
            place = self._place[name]
            return self.spec.outputs[place].datatype, outputs[place]
        classes = outputs[0].argmax(axis=1).astype(np.int64)
        if name == CLASSES:
            return "INT64", classes
        return "BYTES", [self.spec.labels[int(number)] for number in classes]

    def datatype(self, name: str) -> str:
        """Return the type of an output's values."""
        if name in self._place:
            return self.spec.outputs[self._place[name]].datatype
        return "INT64" if name == CLASSES else "BYTES"

    def row_bytes(self, name: str, *, as_text: bool) -> int:
        """The most that one example's share of an output takes in an answer, as text or as raw bytes."""
        if name == LABELS:
            return self._label_bytes
        tensor = self.spec.outputs[self._place[name]] if name in self._place else None
        numbers = 1 if tensor is None else prod(tensor.shape)
        if as_text:
            return NUMBER_BYTES * numbers
        return numbers * (8 if tensor is None else NUMPY[tensor.datatype].itemsize)

    @property
    def answer_bytes(self) -> int:
        """The most that one example's share of all outputs takes as raw bytes."""
        return sum(self.row_bytes(name, as_text=False) for name in self.outputs)

    def plan(self, text: str) -> int:
        """The number of a plan that a client names, such as '0.5' or '0.25,0.5,0.75,1.0'."""
        try:
            return self.model.tree.index[self.spec.path(text)]
        except PlanError as error:
            raise BadRequest(str(error)) from None

    def metadata(self) -> dict[str, object]:
        """The model's inputs and outputs as the protocol describes them."""
        outputs: list[dict[str, object]] = []
        for name in self.outputs:
            if name in self._place:
                outputs.append(_described(self.spec.outputs[self._place[name]]))
            else:
                outputs.append({"name": name, "datatype": self.datatype(name), "shape": [-1]})
        return {
            "name": self.name,
            "versions": [self.version],
            "platform": "slimsched_pytorch",
            "inputs": [_described(tensor) for tensor in self.spec.inputs],
            "outputs": outputs,
        }


def find_face(faces: Mapping[str, ModelFace], name: str, version: str = "") -> ModelFace:
    """Find a model by name; refuse one, or a version, that is not there."""
    face = faces.get(name)
    if face is None:
        known = ", ".join(f"'{one}'" for one in faces) or "none"
        raise NotFound(f"unknown model '{name}'; this server has {known}")
    if version not in ("", face.version):
        raise NotFound(f"unknown version '{version}' of '{name}'; this server has '{face.version}'")
    return face


def accepted_types(tensor: TensorSpec) -> tuple[str, ...]:
    """The element types a client may send: the model's own, and for bytes floats in [0, 1] as well."""
    return ("UINT8", "FP32") if tensor.datatype == "UINT8" else (tensor.datatype,)


def _described(tensor: TensorSpec) -> dict[str, object]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": [-1, *tensor.shape]}
