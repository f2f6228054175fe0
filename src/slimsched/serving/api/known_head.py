"""A known head: what the first bytes of a request mean, and how its answer is written.

Clients send the same head with every request. It is read and checked once, by the code that reads any
request. After that the same bytes mean the same, until models or limits change.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from slimsched.models.spec import NUMPY
from slimsched.serving.api.call import Call
from slimsched.serving.api.model_face import LABELS, Outputs
from slimsched.serving.api.receipt import write_receipt
from slimsched.serving.api.request_parameters import Parameter
from slimsched.serving.api.tensor import pack
from slimsched.serving.live.calls import Receipt

LARGEST_ANSWER_BYTES = 256 * 2**10

Layout = list[tuple[int, int]]
"""Where each input of the model begins behind the text of a request, and its size in bytes."""


class AnswerForm(NamedTuple):
    """How a protocol writes answers that differ in two numbers."""

    around: Callable[[Call, dict[str, Parameter], Sequence[tuple[int, ...]]], tuple[bytes, bytes, bytes]]
    """Writes the text around the network time and the number of the request, with outputs of these shapes."""
    before_rows: Callable[[int], bytes]
    """Writes what precedes an output with this number of bytes."""


def is_plain_call(call: Call) -> bool:
    """Whether the answer to this call differs from others only in numbers."""
    size = call.count * sum(call.face.row_bytes(one.name, as_text=False) for one in call.outputs)
    is_raw = all(one.binary and one.place is None and one.name != LABELS for one in call.outputs)
    return is_raw and size <= LARGEST_ANSWER_BYTES


class KnownHead:
    """Calls with the same head, which differ only in the values of their tensors."""

    def __init__(self, number: int, call: Call, layout: Layout, form: AnswerForm) -> None:
        self.number, self.layout, self._around = number, layout, form.around
        self.call = replace(call, inputs=())
        self.count, self.model = call.count, call.face.model.number
        self.row_bytes = [call.face.row_bytes(one.name, as_text=False) for one in call.outputs]
        """What each output takes per example."""
        self.before_rows = [form.before_rows(self.count * size) for size in self.row_bytes]
        self._kinds = [NUMPY[tensor.datatype] for tensor in call.face.spec.inputs]
        self._last: tuple[Receipt | None, tuple[bytes, bytes, bytes]] = (None, (b"", b"", b""))

    def accepts(self, inputs: Sequence[memoryview]) -> bool:
        """Whether the values of some calls can be what they are: floats must be finite."""
        return all(
            kind.kind != "f" or bool(np.isfinite(np.frombuffer(raw, kind)).all())
            for kind, raw in zip(self._kinds, inputs, strict=True)
        )

    def arrays(self, raws: Sequence[memoryview], count: int) -> Outputs:
        """Return the model's outputs for this many examples."""
        specs = self.call.face.spec.outputs
        return tuple(
            [
                np.frombuffer(raw, NUMPY[spec.datatype]).reshape(count, *spec.shape)
                for raw, spec in zip(raws, specs, strict=True)
            ]
        )

    def rows(self, outputs: Outputs) -> list[bytes]:
        """Return the bytes of each output that the calls ask for, example by example."""
        return [pack(self.call.face.tensor(one.name, outputs)[1]) for one in self.call.outputs]

    def text(self, receipt: Receipt) -> tuple[bytes, bytes, bytes]:
        """Return the text of an answer, around its network time and the number of its first request."""
        if self._last[0] is not receipt:
            self._last = receipt, self._text(receipt)
        return self._last[1]

    def _text(self, receipt: Receipt) -> tuple[bytes, bytes, bytes]:
        """Return the text around what differs between calls on one receipt."""
        call = self.call
        own, accuracy = replace(receipt, examples=self.count), call.face.model.quality.accuracy
        parameters = write_receipt(call.face.spec, [own], accuracy, call.terms)
        return self._around(call, parameters, [(self.count, *self._shape(one.name)) for one in call.outputs])

    def _shape(self, output: str) -> tuple[int, ...]:
        shapes = {tensor.name: tuple(tensor.shape) for tensor in self.call.face.spec.outputs}
        return shapes.get(output, ())
