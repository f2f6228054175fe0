"""Which web pages may use this server from a browser: CORS, as the Fetch standard describes it.

A browser asks first, with OPTIONS, whether a page of another origin may send a request. Then it shows the
page the answers that name its origin. Without `slim serve --cors`, no page is let in.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from slimsched.core.config import ConfigError
from slimsched.serving.api.http_response import HttpResponse, offer
from slimsched.serving.api.request_reader import HttpRequest

ANY = "*"
KEPT_S = 600
"""How long a browser need not ask again."""
USUAL = "authorization, content-type, inference-header-content-length"
SHOWN = "inference-header-content-length, retry-after, www-authenticate"
"""Headers of answers that pages may read besides those that they always may."""

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._~-]+)(:[0-9]{1,5})?")
_FIELD_NAMES = re.compile(r"[!#-'*+.^_`|~0-9A-Za-z-]+( *, *[!#-'*+.^_`|~0-9A-Za-z-]+)*")


class Cors:
    """The origins whose pages may use this server; `*` stands for all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(map(_checked, origins))
        self._is_open = ANY in self._origins

    def preflight(self, request: HttpRequest) -> HttpResponse | None:
        """Answer the question of a browser; None if this request is not one. It needs no token."""
        headers = request.headers
        if "origin" not in headers or "access-control-request-method" not in headers:
            return None
        response = offer(request.path)
        if not self._lets_in(headers["origin"]):
            return response
        asked = headers.get("access-control-request-headers", "")
        allowed = {
            "access-control-allow-methods": response.headers["allow"],
            "access-control-allow-headers": asked if _FIELD_NAMES.fullmatch(asked) else USUAL,
            "access-control-max-age": str(KEPT_S),
        }
        return replace(response, headers={**response.headers, **allowed})

    def shown(self, origin: str, response: HttpResponse) -> HttpResponse:
        """Let pages of this origin read a response, if they may."""
        headers = dict(response.headers)
        if not self._is_open:
            headers["vary"] = "Origin"  # other origins get another answer, so caches must not mix them
        if origin and self._lets_in(origin):
            headers["access-control-allow-origin"] = ANY if self._is_open else origin
            headers["access-control-expose-headers"] = SHOWN
        return replace(response, headers=headers)

    def _lets_in(self, origin: str) -> bool:
        return self._is_open or origin in self._origins


def _checked(origin: str) -> str:
    text = origin.lower().removesuffix("/")
    if text != ANY and _ORIGIN.fullmatch(text) is None:
        raise ConfigError(f"--cors '{origin}' is not an origin; write it as https://example.org:8443, or *")
    return text


def read_cors(origins: Sequence[str]) -> Cors | None:
    """Return who may use the server from a browser; None if no origin is given."""
    return Cors(origins) if origins else None
