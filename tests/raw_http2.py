"""Frames of HTTP/2 by hand, for tests that must send what no client would."""

import socket

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    *range(5),
    *range(6, 10),
)
END_STREAM, END_HEADERS = 1, 4
INFER = "/inference.GRPCInferenceService/ModelInfer"


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    """Return one frame."""
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def field(name: str, value: str) -> bytes:
    """Return a header that is not compressed."""
    return b"\0" + b"".join(_text(one.encode()) for one in (name, value))


def _text(raw: bytes) -> bytes:
    if len(raw) < 127:
        return bytes([len(raw)]) + raw
    rest, sizes = len(raw) - 127, bytearray([127])
    while rest >= 128:
        sizes.append(rest & 127 | 128)
        rest >>= 7
    return bytes([*sizes, rest]) + raw


def head(path: str = INFER, **more: str) -> bytes:
    """Return the headers of a gRPC call."""
    given = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x"}
    given |= {"content-type": "application/grpc", "te": "trailers"}
    return b"".join(field(name, value) for name, value in {**given, **more}.items())


def message(raw: bytes) -> bytes:
    """Return a message as gRPC frames it."""
    return b"\0" + len(raw).to_bytes(4, "big") + raw


def connect(address: str, settings: bytes = b"") -> socket.socket:
    """Open a connection and say hello."""
    host, port = address.split(":")
    client = socket.create_connection((host, int(port)), timeout=30)
    client.sendall(PREFACE + frame(SETTINGS, 0, 0, settings))
    return client


def is_closed(client: socket.socket, within_s: float) -> bool:
    """Whether the server ends the connection in this time; what it sends is thrown away."""
    client.settimeout(within_s)
    try:
        while client.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        pass
    return True


def reads_status(client: socket.socket, within_s: float) -> bool:
    """Whether a call gets its status in this time: headers that end it."""
    client.settimeout(within_s)
    received = b""
    try:
        while part := client.recv(65536):
            received += part
            while len(received) >= 9 and len(received) >= 9 + int.from_bytes(received[:3], "big"):
                if received[3] == HEADERS and received[4] & END_STREAM:
                    return True
                received = received[9 + int.from_bytes(received[:3], "big") :]
    except TimeoutError:
        pass
    return False
