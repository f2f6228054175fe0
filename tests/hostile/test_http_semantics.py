"""HTTP as RFC 9110 and 9112 describe it: what is sent, what is answered, what becomes of the connection.

Each row is sent to a server with the compiled line, to one without, and to one with a front process.
"""

import socket
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import pytest

from raw_http import INFER, INFER_BYTES, connect, infer, infer_many, read_reply
from served import Served, serve

OPEN, CLOSED = "open", "closed"
LIVE = "/v2/health/live"
PROBE = f"GET {LIVE} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


@pytest.fixture(scope="module", params=["compiled", "pure", "one front"])
def spoken(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for the table; it must answer all of it without an unexpected failure."""
    with pytest.MonkeyPatch.context() as environment:
        if request.param == "pure":
            environment.setenv("SLIM_PURE", "1")
        fronts = "1" if request.param == "one front" else "0"
        running = serve(tmp_path_factory.mktemp("spoken"), "--fronts", fronts)
    yield running
    assert running.stop() == 0
    assert "Traceback" not in running.log.read_text()


def ask(line: str, *fields: str, body: str = "") -> bytes:
    """Return a request with this first line and these headers."""
    return ("\r\n".join([line, *fields]) + "\r\n\r\n" + body).encode("latin-1")


def get(*fields: str) -> bytes:
    return ask(f"GET {LIVE} HTTP/1.1", "host: x", *fields)


def chunked(request: bytes) -> bytes:
    """Return a request with its body in one chunk."""
    head, _, body = request.partition(b"\r\n\r\n")
    return head + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


Headers = dict[str, str | None]
"""What a header must be; None if it must not be there."""

TABLE: dict[str, tuple[bytes, int, Headers, str]] = {
    # versions and persistence: RFC 9112, sections 2.3 and 9.3
    "HTTP/1.1": (get(), 200, {"connection": None}, OPEN),
    "HTTP/1.1, close": (get("connection: close"), 200, {"connection": "close"}, CLOSED),
    "HTTP/1.1, close among others": (get("connection: x, Close"), 200, {"connection": "close"}, CLOSED),
    "HTTP/1.0": (ask(f"GET {LIVE} HTTP/1.0"), 200, {"connection": "close"}, CLOSED),
    "HTTP/1.0, keep-alive": (
        ask(f"GET {LIVE} HTTP/1.0", "Connection: Keep-Alive"),
        200,
        {"connection": "keep-alive"},
        OPEN,
    ),
    "HTTP/1.2": (ask(f"GET {LIVE} HTTP/1.2", "host: x"), 200, {"connection": None}, OPEN),
    "HTTP/0.9": (b"GET /v2/health/live\r\n\r\n", 505, {}, CLOSED),
    "HTTP/0.9 in words": (ask(f"GET {LIVE} HTTP/0.9", "host: x"), 505, {}, CLOSED),
    "HTTP/2.0": (ask(f"GET {LIVE} HTTP/2.0", "host: x"), 505, {}, CLOSED),
    "HTTP/3.0": (ask(f"GET {LIVE} HTTP/3.0", "host: x"), 505, {}, CLOSED),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, {}, CLOSED),
    "no version": (ask(f"GET {LIVE} HTTP/x", "host: x"), 400, {}, CLOSED),
    # Host: RFC 9112, section 3.2
    "no Host": (ask(f"GET {LIVE} HTTP/1.1"), 400, {}, CLOSED),
    "two Hosts": (ask(f"GET {LIVE} HTTP/1.1", "host: x", "Host: x"), 400, {}, CLOSED),
    "an empty Host": (ask(f"GET {LIVE} HTTP/1.1", "host:"), 200, {}, OPEN),
    "a Host with a port": (ask(f"GET {LIVE} HTTP/1.1", "host: [::1]:8000"), 200, {}, OPEN),
    "a Host that is none": (ask(f"GET {LIVE} HTTP/1.1", "host: a b"), 400, {}, CLOSED),
    "a Host with a path": (ask(f"GET {LIVE} HTTP/1.1", "host: a/b"), 400, {}, CLOSED),
    # targets: RFC 9112, section 3.2
    "absolute-form": (ask(f"GET http://example.org:8000{LIVE}?x=/ HTTP/1.1", "host: x"), 200, {}, OPEN),
    "absolute-form, HTTPS": (ask(f"GET HTTPS://x{LIVE} HTTP/1.1", "host: x"), 200, {}, OPEN),
    "absolute-form without a path": (ask("GET http://x?a/b HTTP/1.1", "host: x"), 200, {}, OPEN),
    "absolute-form of another scheme": (ask("GET ftp://x/v2 HTTP/1.1", "host: x"), 400, {}, CLOSED),
    "absolute-form, inference": (infer(target=f"http://x{INFER}"), 200, {}, OPEN),
    "a query": (ask(f"GET {LIVE}?a=%zz HTTP/1.1", "host: x"), 200, {}, OPEN),
    "escapes": (ask("GET /v2/models/slim%72esne%74 HTTP/1.1", "host: x"), 200, {}, OPEN),
    "escapes, inference": (infer(target="/v2/models/slim%72esnet/infer"), 200, {}, OPEN),
    "escapes of nobody": (ask("GET /v2/models/n%C3%A4he%25 HTTP/1.1", "host: x"), 404, {}, OPEN),
    "half an escape": (ask("GET /v2/models/slim%7 HTTP/1.1", "host: x"), 400, {}, CLOSED),
    "no escape": (ask("GET /v2/models/slim%zz HTTP/1.1", "host: x"), 400, {}, CLOSED),
    "an escaped line": (ask("GET /v2%0d%0aa: HTTP/1.1", "host: x"), 400, {}, CLOSED),
    "an escaped blank": (ask("GET /v2%20HTTP/1.1 HTTP/1.1", "host: x"), 404, {}, OPEN),
    "escapes that are not UTF-8": (ask("GET /v2/%ff HTTP/1.1", "host: x"), 400, {}, CLOSED),
    "asterisk-form": (
        ask("OPTIONS * HTTP/1.1", "host: x"),
        204,
        {"allow": "GET, HEAD, POST, PUT, OPTIONS", "content-length": None, "content-type": None},
        OPEN,
    ),
    "asterisk-form of GET": (ask("GET * HTTP/1.1", "host: x"), 400, {}, CLOSED),
    # framing: RFC 9112, section 6
    "blanks behind Content-Length": (infer(f"Content-Length: {INFER_BYTES} \t "), 200, {}, OPEN),
    "a length twice": (infer("content-length: 5", "content-length: 5"), 400, {}, CLOSED),
    "a length with a sign": (infer("content-length: +5"), 400, {}, CLOSED),
    "an empty length": (infer("content-length: "), 400, {}, CLOSED),
    "chunks": (chunked(infer("transfer-encoding: Chunked")), 200, {}, OPEN),
    "chunks and a length": (infer("transfer-encoding: chunked", "content-length: 5"), 400, {}, CLOSED),
    "a length and chunks": (infer("content-length: 5", "transfer-encoding: chunked"), 400, {}, CLOSED),
    "gzip in chunks": (infer("transfer-encoding: gzip, chunked"), 501, {}, CLOSED),
    "gzip, then chunks": (infer("transfer-encoding: gzip", "transfer-encoding: chunked"), 501, {}, CLOSED),
    "gzip without chunks": (infer("transfer-encoding: gzip"), 501, {}, CLOSED),
    "chunks that are not last": (infer("transfer-encoding: chunked, gzip"), 400, {}, CLOSED),
    "chunks of HTTP/1.0": (infer("transfer-encoding: chunked", version="1.0"), 400, {}, CLOSED),
    "a folded header": (ask(f"GET {LIVE} HTTP/1.1", "host: x", "a: b", " c"), 400, {}, CLOSED),
    "a blank before the colon": (ask(f"GET {LIVE} HTTP/1.1", "host : x"), 400, {}, CLOSED),
    # upgrades and expectations: RFC 9110, sections 7.8 and 10.1.1
    "Upgrade: h2c": (
        get(
            "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"
        ),
        200,
        {"upgrade": None},
        OPEN,
    ),
    "Upgrade: websocket": (get("Connection: upgrade", "Upgrade: websocket"), 200, {"upgrade": None}, OPEN),
    "Upgrade of an inference": (infer("Connection: Upgrade", "Upgrade: h2c"), 200, {}, OPEN),
    "Upgrade in chunks": (
        chunked(infer("Connection: Upgrade", "Upgrade: h2c", "Transfer-Encoding: chunked")),
        200,
        {},
        OPEN,
    ),
    "Expect: 100-continue": (infer("Expect: 100-Continue"), 200, {}, OPEN),
    "Expect: nonsense": (infer("Expect: nonsense"), 417, {}, CLOSED),
    "Expect of HTTP/1.0": (infer("Expect: nonsense", version="1.0"), 200, {}, CLOSED),
    # compressed bodies: RFC 9110, section 15.5.16
    "br": (infer("Content-Encoding: br"), 415, {"accept-encoding": "gzip, deflate"}, OPEN),
    "gzip of deflate": (
        infer("content-encoding: deflate, gzip"),
        415,
        {"accept-encoding": "gzip, deflate"},
        OPEN,
    ),
    "no gzip": (infer("Content-Encoding: gzip"), 400, {}, OPEN),
    "no deflate": (infer("content-encoding: deflate"), 400, {}, OPEN),
    "br in a goal": (
        ask("PUT /v2/goal HTTP/1.1", "host: x", "content-encoding: br", "content-length: 2", body="{}"),
        415,
        {"accept-encoding": "gzip, deflate"},
        OPEN,
    ),
    "no gzip in a goal": (
        ask("PUT /v2/goal HTTP/1.1", "host: x", "content-encoding: gzip", "content-length: 2", body="{}"),
        400,
        {},
        OPEN,
    ),
    "identity": (infer("Content-Encoding: Identity"), 200, {}, OPEN),
    # methods: RFC 9110, section 9
    "HAProxy's check": (ask("OPTIONS / HTTP/1.0"), 204, {"allow": "GET, HEAD, OPTIONS"}, CLOSED),
    "OPTIONS of a model": (
        ask(f"OPTIONS {INFER} HTTP/1.1", "host: x"),
        204,
        {"allow": "POST, OPTIONS"},
        OPEN,
    ),
    "OPTIONS of nothing": (ask("OPTIONS /nothing HTTP/1.1", "host: x"), 204, {}, OPEN),
    "GET of a model": (ask(f"GET {INFER} HTTP/1.1", "host: x"), 405, {"allow": "POST, OPTIONS"}, OPEN),
    "PATCH": (ask("PATCH /v2 HTTP/1.1", "host: x"), 405, {"allow": "GET, HEAD, OPTIONS"}, OPEN),
    "DELETE": (ask("DELETE /v2 HTTP/1.1", "host: x"), 405, {"allow": "GET, HEAD, OPTIONS"}, OPEN),
    "TRACE": (ask("TRACE /v2 HTTP/1.1", "host: x"), 405, {"allow": "GET, HEAD, OPTIONS"}, OPEN),
    "POST of the goal": (
        ask("POST /v2/goal HTTP/1.1", "host: x", "content-length: 0"),
        405,
        {"allow": "GET, HEAD, PUT, OPTIONS"},
        OPEN,
    ),
    "CONNECT": (ask("CONNECT example.org:443 HTTP/1.1", "host: x"), 501, {}, CLOSED),
    "CONNECT of a path": (ask("CONNECT /v2 HTTP/1.1", "host: x"), 501, {}, CLOSED),
    "a method of WebDAV": (ask("PROPFIND /v2 HTTP/1.1", "host: x"), 501, {}, CLOSED),
    "a method of streams": (ask("DESCRIBE /v2 HTTP/1.1", "host: x"), 501, {}, CLOSED),
    "QUERY": (ask("QUERY /v2 HTTP/1.1", "host: x"), 405, {"allow": "GET, HEAD, OPTIONS"}, OPEN),
    "an unknown method": (ask("FROBNICATE /v2 HTTP/1.1", "host: x"), 501, {}, CLOSED),
    "a method in small letters": (ask("get /v2 HTTP/1.1", "host: x"), 501, {}, CLOSED),
    "no method": (ask("G(T /v2 HTTP/1.1", "host: x"), 400, {}, CLOSED),
}


@pytest.mark.parametrize("name", TABLE)
def test_each_request_is_answered_as_the_standard_says(spoken: Served, name: str) -> None:
    sent, status, headers, after = TABLE[name]
    for _ in range(2):
        with connect(spoken.http) as client:
            stream = client.makefile("rb")
            for _ in range(1 if after == CLOSED else 2):  # the compiled line knows heads that came twice
                client.sendall(sent)
                reply = read_reply(stream)
                assert reply.status == status, reply
                assert {key: reply.headers.get(key) for key in headers} == headers
            if after == CLOSED:
                assert reply.headers["connection"] == "close"
                assert stream.read() == b"", "exactly one answer"
            else:
                client.sendall(PROBE)
                assert read_reply(stream).body == b'{"live":true}', "exactly one answer"


def test_an_answer_has_a_date_whoever_reads_the_request(spoken: Served) -> None:
    with connect(spoken.http) as client:
        stream = client.makefile("rb")
        for _ in range(5):  # from the third on, the compiled line knows the head
            client.sendall(infer())
            assert parsedate_to_datetime(read_reply(stream).headers["date"])


def test_every_answer_has_a_date(spoken: Served) -> None:
    for sent in (
        get(),
        ask("GET /nothing HTTP/1.1", "host: x"),
        b"nonsense\r\n\r\n",
        b"OPTIONS / HTTP/1.0\r\n\r\n",
    ):
        with connect(spoken.http) as client:
            client.sendall(sent)
            date = read_reply(client.makefile("rb")).headers["date"]
        assert date.endswith(" GMT")
        assert abs((parsedate_to_datetime(date) - datetime.now(UTC)).total_seconds()) < 10


def test_an_old_client_keeps_its_connection_for_many_inferences(spoken: Served) -> None:
    with connect(spoken.http) as client:
        stream = client.makefile("rb")
        for _ in range(4):
            client.sendall(infer("Connection: Keep-Alive", version="1.0", host=""))
            reply = read_reply(stream)
            assert (reply.status, reply.headers["connection"]) == (200, "keep-alive")


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/ready", "/v2/models/slimresnet", "/openapi.json", "/nothing"]
)
def test_head_is_get_without_the_body(spoken: Served, path: str) -> None:
    with connect(spoken.http) as client:
        stream = client.makefile("rb")
        client.sendall(ask(f"GET {path} HTTP/1.1", "host: x"))
        full = read_reply(stream)
        client.sendall(ask(f"HEAD {path} HTTP/1.1", "host: x"))
        reply = read_reply(stream, of_head=True)
        client.sendall(PROBE)
        assert read_reply(stream).status == 200, "no body came"
    assert reply.status == full.status
    assert reply.headers["content-length"] == full.headers["content-length"] == str(len(full.body))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/v2",
        "/v2/goal",
        LIVE,
        INFER,
        "/v2/models/slimresnet",
        "/v2/models/slimresnet/versions/1/infer",
        "/v2/repository/index",
        "/v2/systemsharedmemory/status",
        "/v2/systemsharedmemory/region/a/register",
        "/v2/cudasharedmemory/unregister",
        "/metrics",
    ],
)
def test_options_names_what_a_refusal_of_a_method_names(spoken: Served, path: str) -> None:
    with connect(spoken.http) as client:
        stream = client.makefile("rb")
        client.sendall(ask(f"OPTIONS {path} HTTP/1.1", "host: x"))
        offered = read_reply(stream)
        client.sendall(ask(f"DELETE {path} HTTP/1.1", "host: x"))
        refused = read_reply(stream)
    assert (offered.status, refused.status) == (204, 405)
    assert offered.headers["allow"] == refused.headers["allow"]


@pytest.mark.parametrize(
    "sent", [get(), infer(), infer() + get() + infer(), b""], ids=["page", "call", "three", "none"]
)
def test_a_client_that_has_ended_its_side_gets_its_answers(spoken: Served, sent: bytes) -> None:
    with connect(spoken.http) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        stream = client.makefile("rb")
        for _ in range(sent.count(b"HTTP/1.1")):
            assert read_reply(stream).status == 200
        assert stream.read() == b""


def test_a_token_may_have_blanks_behind_it(own_server: Callable[..., Served]) -> None:
    served = own_server("--token", "s3cret")
    with connect(served.http) as client:
        stream = client.makefile("rb")
        for _ in range(3):
            client.sendall(infer("Authorization: Bearer s3cret \t"))
            assert read_reply(stream).status == 200
        client.sendall(infer("Authorization: Bearer s3cret", "Authorization: Bearer s3cret"))
        assert read_reply(stream).status == 401
        client.sendall(ask("OPTIONS /v2 HTTP/1.1", "host: x"))
        assert read_reply(stream).status == 204
    assert served.stop() == 0


def test_a_client_that_leaves_without_a_word_takes_its_work_with_it(
    own_server: Callable[..., Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has left looks at first like one that has ended its side only."""
    monkeypatch.setenv("SLIM_PURE", "1")
    served = own_server()
    call = infer_many(64)
    for _ in range(200):  # more than can be answered in the time that is allowed below
        with connect(served.http) as client:
            client.sendall(call)
    left = 'slim_responses_total{protocol="http",kind="infer",code="499"}'
    give_up_s = time.monotonic() + 30
    while not served.metric(left) and time.monotonic() < give_up_s:
        time.sleep(0.1)
    assert served.metric(left) > 0
    while served.metric("slim_images_in_system") and time.monotonic() < give_up_s:
        time.sleep(0.1)
    assert served.metric("slim_images_in_system") == 0
    assert served.stop() == 0
