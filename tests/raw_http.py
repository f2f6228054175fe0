"""HTTP/1.1 by hand, for tests that must send what no client would."""

import socket
from typing import BinaryIO, NamedTuple

import numpy as np

INFER = "/v2/models/slimresnet/infer"
NO_BODY = (204, 304)


class Reply(NamedTuple):
    """One response; the names of its headers in small letters, each at most once."""

    status: int
    headers: dict[str, str]
    body: bytes


def connect(address: str) -> socket.socket:
    """Open a connection."""
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=30)


def read_reply(stream: BinaryIO, *, of_head: bool = False) -> Reply:
    """Read one final response; those to HEAD have no body."""
    while True:
        line = stream.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        status, headers = int(line.split()[1]), dict[str, str]()
        for field in iter(stream.readline, b"\r\n"):
            name, _, value = field.decode("latin-1").partition(":")
            assert name.lower() not in headers, f"{name} comes twice"
            headers[name.lower()] = value.strip()
        if status >= 200:
            break
    if of_head or status in NO_BODY:
        return Reply(status, headers, b"")
    if "content-length" in headers:
        return Reply(status, headers, stream.read(int(headers["content-length"])))
    return Reply(status, headers, stream.read())


def infer(*lines: str, version: str = "1.1", target: str = INFER, host: str = "host: x") -> bytes:
    """Return a request for the classes of one image; `lines` are more headers."""
    image = np.full((1, 3, 32, 32), 7, np.uint8).tobytes()
    text = (
        b'{"inputs":[{"name":"images","shape":[1,3,32,32],"datatype":"UINT8","parameters":'
        b'{"binary_data_size":3072}}],"outputs":[{"name":"classes","parameters":{"binary_data":true}}]}'
    )
    fields = [host, *lines, f"inference-header-content-length: {len(text)}"]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        fields.append(f"content-length: {len(text) + len(image)}")
    head = "\r\n".join([f"POST {target} HTTP/{version}", *filter(None, fields)]) + "\r\n\r\n"
    return head.encode("latin-1") + text + image


INFER_BYTES = len(infer()) - infer().index(b"\r\n\r\n") - 4
"""The size of the body of that request."""


def infer_many(images: int) -> bytes:
    """Return a request for the classes of many images, with the widest network."""
    pixels = bytes(3072 * images)
    text = (
        f'{{"inputs":[{{"name":"images","shape":[{images},3,32,32],"datatype":"UINT8","parameters":'
        f'{{"binary_data_size":{len(pixels)}}}}}],"outputs":[{{"name":"classes"}}],"parameters":{{"plan":"1.0"}}}}'
    )
    head = (
        f"POST {INFER} HTTP/1.1\r\nhost: x\r\ninference-header-content-length: {len(text)}\r\n"
        f"content-length: {len(text) + len(pixels)}\r\n\r\n"
    )
    return (head + text).encode() + pixels
