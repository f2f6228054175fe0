"""Web pages of chosen origins may use the server from a browser, and nobody else's."""

from collections.abc import Callable, Iterator

import pytest

from raw_http import INFER, Reply, connect, infer, read_reply
from served import Served, serve
from slimsched.core.config import ConfigError
from slimsched.serving.api.http import read_cors

PAGE, STRANGER = "https://app.example.org", "https://evil.example.org"
TOKEN = "Authorization: Bearer s3cret"


@pytest.fixture(scope="module", params=["0", "1"], ids=["no fronts", "one front"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a token that two origins may use."""
    origins = ("--cors", PAGE, "--cors", "http://localhost:3000/")
    folder = tmp_path_factory.mktemp("shared")
    running = serve(folder, *origins, "--token", "s3cret", "--fronts", request.param)
    yield running
    assert running.stop() == 0


def ask(served: Served, *requests: bytes) -> list[Reply]:
    """Send requests one after the other on one connection."""
    with connect(served.http) as client:
        stream, replies = client.makefile("rb"), []
        for one in requests:
            client.sendall(one)
            replies.append(read_reply(stream))
    return replies


def preflight(origin: str, path: str = INFER, method: str = "POST", fields: str = "") -> bytes:
    asked = f"access-control-request-headers: {fields}\r\n" if fields else ""
    return (
        f"OPTIONS {path} HTTP/1.1\r\nhost: x\r\norigin: {origin}\r\n"
        f"access-control-request-method: {method}\r\n{asked}\r\n"
    ).encode()


def cors_of(reply: Reply) -> dict[str, str]:
    """Return what a reply says about other origins."""
    return {name: value for name, value in reply.headers.items() if name.startswith("access-control-")}


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000"])
def test_a_browser_may_ask_without_a_token(shared: Served, origin: str) -> None:
    [reply] = ask(shared, preflight(origin))
    assert (reply.status, reply.headers["vary"]) == (204, "Origin")
    said = cors_of(reply)
    assert said["access-control-allow-origin"] == origin
    assert said["access-control-allow-methods"] == "POST, OPTIONS"
    assert "authorization" in said["access-control-allow-headers"]
    assert int(said["access-control-max-age"]) > 0


def test_a_page_may_send_the_headers_it_asks_for(shared: Served) -> None:
    wanted = "authorization,x-request-id"
    [reply] = ask(shared, preflight(PAGE, "/v2/goal", "PUT", wanted))
    assert reply.headers["access-control-allow-headers"] == wanted
    assert "PUT" in reply.headers["access-control-allow-methods"]


def test_a_page_reads_answers_however_often_it_asks(shared: Served) -> None:
    for reply in ask(shared, *[infer(f"Origin: {PAGE}", TOKEN)] * 4):
        assert (reply.status, reply.headers["vary"]) == (200, "Origin")
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "inference-header-content-length" in reply.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (infer(f"Origin: {PAGE}"), 401),
        (infer(f"Origin: {PAGE}", TOKEN, target="/v2/models/nobody/infer"), 404),
        (infer(f"Origin: {PAGE}", TOKEN, "content-encoding: br"), 415),
        (f"GET /nothing HTTP/1.1\r\nhost: x\r\norigin: {PAGE}\r\n{TOKEN}\r\n\r\n".encode(), 404),
        (infer(f"Origin: {PAGE}", "content-length: 99999999999"), 413),
    ],
)
def test_a_page_reads_refusals(shared: Served, sent: bytes, status: int) -> None:
    [reply] = ask(shared, sent)
    assert (reply.status, reply.headers["access-control-allow-origin"]) == (status, PAGE)


@pytest.mark.parametrize("origin", [STRANGER, PAGE + ".evil.org", "http://app.example.org", "null"])
def test_others_are_told_nothing(shared: Served, origin: str) -> None:
    for reply in ask(shared, preflight(origin), *[infer(f"Origin: {origin}", TOKEN)] * 3):
        assert reply.status in (200, 204)
        assert cors_of(reply) == {}


def test_other_clients_are_served_as_ever(shared: Served) -> None:
    for reply in ask(shared, *[infer(TOKEN)] * 4):
        assert (reply.status, cors_of(reply)) == (200, {})


def test_a_star_lets_all_pages_in(own_server: Callable[..., Served]) -> None:
    served = own_server("--cors", "*")
    for reply in ask(served, preflight(STRANGER), *[infer(f"Origin: {STRANGER}")] * 3):
        assert reply.headers["access-control-allow-origin"] == "*"
        assert "vary" not in reply.headers
    assert served.stop() == 0


def test_without_the_option_nothing_is_said(served: Served) -> None:
    for reply in ask(served, preflight(PAGE), *[infer(f"Origin: {PAGE}")] * 3):
        assert cors_of(reply) == {}
        assert "vary" not in reply.headers


@pytest.mark.parametrize("origin", ["example.org", "https://example.org/app", "https://", "https://a b", ""])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"is not an origin; write it as https://example\.org"):
        read_cors([origin])
