"""What the head of a request must be beyond its grammar: its target, its Host, how its body is framed."""

import re
from urllib.parse import unquote_to_bytes

_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(:[0-9]*)?")


class UnreadableError(Exception):
    """These bytes are not to be read any further; the status and the reason to send.

    `origin` is that of the web page that sent them, if they name one.
    """

    def __init__(self, status: int, why: str, origin: str = "") -> None:
        super().__init__(why)
        self.status, self.why, self.origin = status, why, origin


def path_of(target: bytes, method: str) -> str:
    """Return the path that a target names, decoded and without its query; `*` for the server as a whole."""
    if not target.startswith(b"/"):
        if target == b"*" and method == "OPTIONS":
            return "*"
        scheme, is_absolute, rest = target.partition(b"://")
        if not is_absolute or scheme.lower() not in (b"http", b"https"):
            raise UnreadableError(400, "the target is neither a path nor an http address; send a path")
        host, _, _ = rest.partition(b"?")
        host, slash, path = host.partition(b"/")
        check_host(host.decode("latin-1"))
        target = slash + path or b"/"
    path = target.partition(b"?")[0]
    return _decoded(path) if b"%" in path else path.decode("latin-1")


def _decoded(path: bytes) -> str:
    """Decode the escapes of a path; refuse those that are none, or hide what no path holds."""
    if _ESCAPE.search(path):
        raise UnreadableError(400, "the path has a % without two hexadecimal digits; write % itself as %25")
    try:
        text = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise UnreadableError(400, "the path is not UTF-8 once its escapes are decoded") from None
    if any(one < " " or one == "\x7f" for one in text):
        raise UnreadableError(400, "the path has escaped control characters; leave them out")
    return text


def check_host(host: str) -> None:
    """Refuse a Host that is not a name or an address with an optional port (RFC 9112, section 3.2)."""
    if _HOST.fullmatch(host) is None:
        raise UnreadableError(400, f"Host is '{host[:100]}'; send a name or an address, and a port if needed")


def check_transfer_encoding(codings: str, *, is_old: bool) -> None:
    """Refuse every coding but `chunked` alone (RFC 9112, section 6.1)."""
    if is_old:
        raise UnreadableError(400, "HTTP/1.0 has no Transfer-Encoding; send Content-Length")
    if codings.lower() != "chunked":
        why = f"Transfer-Encoding '{codings[:100]}' is not understood; send chunked, or Content-Length"
        raise UnreadableError(501, why)
