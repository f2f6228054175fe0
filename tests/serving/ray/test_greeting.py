"""Activations as they travel between servers on different nodes."""

import msgspec
import pytest
import torch

from slimsched.serving.ray.messages import Handed
from slimsched.serving.ray.server import pack, unpack


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("buffer", [bytes, bytearray])
def test_activations_arrive_as_they_left(dtype: torch.dtype, buffer: type[bytes | bytearray]) -> None:
    rows = torch.randn(3, 16, 8, 8).to(dtype).to(memory_format=torch.channels_last)
    labels = torch.arange(3)
    sent = buffer(msgspec.msgpack.encode(pack((rows, labels))))
    found = unpack(msgspec.msgpack.decode(memoryview(sent), type=Handed))
    assert found is not None
    assert torch.equal(found[0], rows)
    assert found[0].is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(found[1], labels)
    assert found[1].dtype == torch.int64


def test_nothing_arrives_as_nothing() -> None:
    sent = msgspec.msgpack.encode(pack(None))
    assert unpack(msgspec.msgpack.decode(sent, type=Handed)) is None
