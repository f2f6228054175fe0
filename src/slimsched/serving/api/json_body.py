"""The one place where JSON from clients is decoded: whatever is wrong with it is the client's error."""

from typing import TypeVar

import msgspec

from slimsched.serving.api.refusal import BadRequest

T = TypeVar("T")


def read_body(decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray | memoryview, what: str) -> T:
    """Decode a body by its type, which has the ranges of all numbers; refuse what does not fit."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise BadRequest(f"the body is not {what}: it is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise BadRequest(f"the body is not {what}: {error}") from None
