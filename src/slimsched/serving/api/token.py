"""The bearer token that clients must send, the same for both protocols."""

import hmac
from pathlib import Path

from slimsched.core.config import ConfigError, read_small_file
from slimsched.serving.api.refusal import Unauthenticated

LONGEST = 4096


class Token:
    """A token to compare with; an empty one lets everybody in."""

    def __init__(self, text: str) -> None:
        self._wanted = f"Bearer {checked(text)}".encode() if text else b""

    def is_in(self, authorization: str) -> bool:
        """Whether a header or metadata `authorization` holds the token."""
        return not self._wanted or hmac.compare_digest(authorization.encode(), self._wanted)

    def check(self, authorization: str, place: str = "header Authorization") -> None:
        """Refuse a request that does not hold the token in this place."""
        if self._wanted and not self.is_in(authorization):
            raise Unauthenticated(f"a token is required; send the {place}: Bearer TOKEN")


def checked(text: str) -> str:
    """Return the token; refuse one that cannot be sent in a header of HTTP and gRPC alike."""
    if len(text) > LONGEST or not all("!" <= character <= "~" for character in text):
        raise ConfigError(
            f"the token must be at most {LONGEST} visible ASCII characters, without spaces: others cannot be "
            "sent in headers; make one with: openssl rand -hex 32"
        )
    return text


def read_token(text: str, path: Path | None) -> str:
    """Return the token that is given, or the one in a file, without the end of its line."""
    if path is None:
        return checked(text)
    if text:
        raise ConfigError("a token and a file with a token are given; leave one of them out")
    found = read_small_file(path, 2 * LONGEST).decode("utf-8", "replace").strip()
    if not found:
        raise ConfigError(f"{path} is empty; write the token into it")
    return checked(found)
