"""Requests mean the same however their bytes arrive: at once, one by one, or after the same head again."""

import pytest

from slimsched.serving.api.http_requests import (
    HttpResponse,
    RequestReader,
    UnreadableError,
    date_field,
    written,
)
from slimsched.serving.api.limits import Limits

NEXT = b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = b"connection: upgrade\r\nupgrade: h2c\r\n"
REQUESTS = {
    "page": NEXT,
    "call": b"POST /v2/models/a/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 300\r\n\r\n" + 100 * b"\r\n ",
    "upgrade": b"GET /v2 HTTP/1.1\r\nhost: x\r\n" + UPGRADE + b"\r\n",
    "upgrade with a body": b"POST /v2 HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n" + UPGRADE + b"\r\nGET /",
    "upgrade in chunks": b"PUT /v2 HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    + UPGRADE
    + b"\r\n3\r\nabc\r\n0\r\n\r\n",
    "escapes": b"GET /%41?%zz HTTP/1.1\r\nhost: x\r\n\r\n",
    "address": b"HEAD http://x/v2 HTTP/1.1\r\nhost: x\r\n\r\n",
    "old": b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    "two of one header": b"GET / HTTP/1.1\r\nhost: x\r\naccept: a\r\naccept: b \r\n\r\n",
}
REFUSALS = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "escape": b"GET /%4 HTTP/1.1\r\nhost: x\r\n\r\n",
    "coding": b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    "expect": b"GET / HTTP/1.1\r\nhost: x\r\nexpect: all\r\n\r\n",
    "version": b"GET / HTTP/2.0\r\nhost: x\r\n\r\n",
    "connect": b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n",
}

Read = tuple[str, str, dict[str, str], bytes, bool, bool]


def read(data: bytes, step: int, reader: RequestReader | None = None) -> list[Read]:
    """Return what a reader makes of bytes that arrive so many at a time."""
    reader = reader or RequestReader(Limits(body_bytes=2**20))
    for start in range(0, len(data), step):
        part, at = data[start : start + step], 0
        while at < len(part):
            end = reader.step(part, at)
            reader.feed(part[at:end])
            at = end
    found = [
        (one.method, one.path, one.headers, bytes(one.body), one.keep_alive, one.is_old)
        for one in reader.complete
    ]
    reader.complete.clear()
    return found


@pytest.mark.parametrize("names", [["x"] * 10_000, [f"x{number}" for number in range(10_000)]])
@pytest.mark.parametrize("step", [700, 10**6])
def test_each_line_of_the_headers_counts_whatever_its_name(names: list[str], step: int) -> None:
    lines = "".join(f"{name}:\r\n" for name in names)
    head = f"GET / HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode()
    for most, is_refused in ((100, True), (10_000, True), (10_001, False)):
        reader = RequestReader(Limits(headers=most, head_bytes=2**20))
        if is_refused:
            with pytest.raises(UnreadableError) as refused:
                read(head, step, reader)
            assert refused.value.status == 431
        else:
            assert len(read(head, step, reader)) == 1


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_may_come_in_any_pieces(name: str) -> None:
    data = REQUESTS[name] + NEXT
    whole = read(data, len(data))
    assert [path for _, path, *_ in whole][1:] == ["/next"]
    for step in (1, 2, 3, 7, 64, 1000):
        assert read(data, step) == whole


@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_head_means_the_same_again(name: str) -> None:
    reader, data = RequestReader(Limits(body_bytes=2**20)), REQUESTS[name]
    first = read(data, len(data), reader)
    for step in (len(data), 5, len(data), len(data)):
        assert read(data, step, reader) == first


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_the_same_in_any_pieces(name: str) -> None:
    found = set()
    for step in (1, 2, 7, 1000):
        with pytest.raises(UnreadableError) as refused:
            read(REFUSALS[name], step)
        found.add((refused.value.status, refused.value.why))
    assert len(found) == 1


def test_an_upgrade_is_no_part_of_what_was_asked() -> None:
    [(method, path, headers, body, *_), _] = read(REQUESTS["upgrade with a body"] + NEXT, 10**6)
    assert (method, path, body) == ("POST", "/v2", b"GET /")
    assert headers == {"host": "x", "content-length": "5", "connection": "upgrade"}


def test_the_date_is_that_of_the_second() -> None:
    assert date_field(784111777) == "date: Sun, 06 Nov 1994 08:49:37 GMT\r\n"
    assert date_field(784111778) == "date: Sun, 06 Nov 1994 08:49:38 GMT\r\n"


def test_an_answer_without_a_body_has_no_length() -> None:
    text = written(HttpResponse(status=204, headers={"allow": "GET"}))
    assert b"content-" not in text
    assert text.endswith(b"\r\nallow: GET\r\n\r\n")
