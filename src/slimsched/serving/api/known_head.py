"""A known head: what the first bytes of a request mean, and how its answer is written.

Clients send the same head with every request. It is read and checked once, by the code that reads any
request. After that the same bytes mean the same, until models or limits change.
"""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from slimsched.models.arrays import NUMPY
from slimsched.serving.api.call import Call
from slimsched.serving.api.http_message import Layout, write_head
from slimsched.serving.api.model_face import LABELS, Outputs
from slimsched.serving.api.receipt import write_receipt
from slimsched.serving.api.request_reader import HttpRequest
from slimsched.serving.api.tensor import pack
from slimsched.serving.execution.live.parcel import Receipt

LARGEST_BYTES = 128 * 2**10
"""The largest request that is worth it: larger ones are received straight where servers read them."""

LARGEST_ANSWER_BYTES = 256 * 2**10

UNUSUAL = ("transfer-encoding", "expect", "upgrade")
"""A head with one of these headers is read each time."""

START = b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\n"
"""How answers begin; the lengths follow."""

NETWORK, REQUEST = "\0network", "\0request"
_marks = [b'"\\u0000network"', b'"\\u0000request"']


def is_plain(request: HttpRequest, call: Call) -> bool:
    """Whether the head of this request can be known: nothing of it depends on more than its bytes."""
    size = len(request.head) + len(request.body)
    answer = call.count * sum(call.face.row_bytes(one.name, as_text=False) for one in call.outputs)
    return (
        bool(request.head)
        and request.keep_alive
        and size <= LARGEST_BYTES
        and answer <= LARGEST_ANSWER_BYTES
        and request.headers.get("connection", "keep-alive").lower() == "keep-alive"
        and not any(name in request.headers for name in UNUSUAL)
        and all(one.binary and one.place is None and one.name != LABELS for one in call.outputs)
    )


class KnownHead:
    """Calls with the same head, which differ only in the values of their tensors."""

    def __init__(self, number: int, call: Call, layout: Layout) -> None:
        self.number, self.layout = number, layout
        self.call = replace(call, inputs=())
        self.count, self.model = call.count, call.face.model.number
        self.row_bytes = [call.face.row_bytes(one.name, as_text=False) for one in call.outputs]
        """What each output takes per example."""
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
        """Return the JSON of an answer, around its network time and the number of its first request."""
        if self._last[0] is not receipt:
            self._last = receipt, self._text(receipt)
        return self._last[1]

    def _text(self, receipt: Receipt) -> tuple[bytes, bytes, bytes]:
        """Return the JSON around what differs between calls on one receipt."""
        call = self.call
        own, accuracy = replace(receipt, examples=self.count), call.face.model.quality.accuracy
        parameters = write_receipt(call.face.spec, [own], accuracy, call.terms)
        parameters |= {"network_ms": NETWORK, "request": REQUEST}
        shapes = [(self.count, *self._shape(one.name)) for one in call.outputs]
        text = write_head(call, parameters, shapes)
        before, _, rest = text.partition(_marks[0])
        between, _, after = rest.partition(_marks[1])
        return before, between, after

    def _shape(self, output: str) -> tuple[int, ...]:
        shapes = {tensor.name: tuple(tensor.shape) for tensor in self.call.face.spec.outputs}
        return shapes.get(output, ())
