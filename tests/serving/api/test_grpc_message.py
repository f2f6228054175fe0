"""Calls and answers in gRPC: what is read and written by hand is what protocol buffers read and write."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from slimsched.serving.api.calls import Call, InferenceResult, ModelApi, RequestedOutput
from slimsched.serving.api.grpc_codec import LONGEST_HEAD_BYTES, MOST_TENSORS, pb, places, write_answer
from slimsched.serving.domain.request import Terms
from slimsched.serving.scenario.files import load_scenario

FACE = ModelApi(load_scenario("laptop").cluster.models[0])

TEXTS = st.text(max_size=300)
PARAMETERS = st.dictionaries(
    TEXTS,
    st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXTS),
    max_size=5,
)


def split(raw: bytes) -> tuple[bytes, list[bytes]] | None:
    """Return the head and the raw tensors that a reader finds."""
    if (found := places(raw)) is None:
        return None
    end, tensors = found
    return raw[:end], [raw[begin:at] for begin, at in tensors]


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


@given(
    parameters=PARAMETERS,
    id=TEXTS,
    count=st.integers(1, 300),
    names=st.lists(st.sampled_from(FACE.outputs), min_size=1, unique=True),
)
def test_an_answer_is_what_protocol_buffers_would_write(
    parameters: dict[str, Any], id: str, count: int, names: list[str]
) -> None:
    outputs = tuple(RequestedOutput(name=name, binary=True) for name in names)
    call = Call(id=id, api=FACE, inputs=(), count=count, terms=Terms(), outputs=outputs)
    logits = np.zeros((count, *FACE.spec.outputs[0].shape), np.float32)
    raw = write_answer(call, InferenceResult(outputs=(logits,), parameters=parameters))
    answer = pb.ModelInferResponse.FromString(raw)
    assert (answer.model_name, answer.model_version, answer.id) == (FACE.name, FACE.version, id)
    assert {name: _value(one) for name, one in answer.parameters.items()} == parameters
    assert [one.name for one in answer.outputs] == names
    assert all(one.shape[0] == count for one in answer.outputs)
    assert len(answer.raw_output_contents) == len(names)
    assert answer.ByteSize() == len(raw), "and no byte more"


def _value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))
