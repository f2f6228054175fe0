"""Calls in gRPC: what is taken apart by hand is what protocol buffers read."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slimsched.serving.api.grpc_head import LONGEST_HEAD_BYTES, MOST_TENSORS, split
from slimsched.serving.api.grpc_message import pb

TEXTS = st.text(max_size=300)


def request(raws: list[bytes], **fields: Any) -> Any:
    message = pb.ModelInferRequest(**{"model_name": "slimresnet", **fields})
    message.inputs.add(name="images", datatype="UINT8", shape=[1, 3, 32, 32])
    message.outputs.add(name="classes")
    message.parameters["plan"].string_param = "0.25"
    message.raw_input_contents.extend(raws)
    return message


@given(raws=st.lists(st.binary(max_size=400), min_size=1, max_size=3), id=TEXTS)
def test_a_head_and_its_tensors_are_the_whole_request(raws: list[bytes], id: str) -> None:
    message = request(raws, id=id)
    parts = split(message.SerializeToString())
    if parts is None:
        assert len(id.encode()) > LONGEST_HEAD_BYTES - 200, "short heads are taken apart"
        return
    head, tensors = parts
    assert [bytes(one) for one in tensors] == raws
    parsed = pb.ModelInferRequest.FromString(head)
    parsed.raw_input_contents.extend(raws)
    assert parsed == message


@given(st.binary(max_size=60))
def test_bytes_that_are_no_request_are_never_taken_for_one(raw: bytes) -> None:
    """What is taken apart, and has a valid head, is read by the parser in the same way."""
    parts = split(raw)
    if parts is not None:
        head, tensors = parts
        assert head + raw[len(head) :] == raw
        whole = pb.ModelInferRequest()
        try:
            whole.ParseFromString(head)
        except Exception:
            return
        whole.raw_input_contents.extend(map(bytes, tensors))
        assert pb.ModelInferRequest.FromString(raw) == whole


def test_what_is_in_another_order_long_or_cut_off_is_left_to_the_parser() -> None:
    raw = request([b"pixels"]).SerializeToString()
    assert split(raw) is not None
    assert split(raw[:-1]) is None, "cut off"
    assert split(raw + b"\x1a\x01x") is None, "an id after the tensors"
    assert split(raw + b"\x80") is None, "a number that does not end"
    assert split(b"\xba\x00\x01x") is None, "a tag in more bytes than it needs"
    assert split(b"\x3a\xff\xff\xff\xff\x0f") is None, "a length beyond the end"
    assert split(request([]).SerializeToString()) is None, "no raw tensors"
    assert split(request([b""], id="x" * LONGEST_HEAD_BYTES).SerializeToString()) is None
    assert split(request([b""] * MOST_TENSORS).SerializeToString()) is not None
    assert split(request([b""] * (MOST_TENSORS + 1)).SerializeToString()) is None, "so memory is bounded"
