"""What clients may ask for, and how they are refused: refusals, what clients hold, tokens, limits.

`Limits` says how much one request, one client and all clients together may ask for. Each limit is a field
with a range, so a new one is checked and can be set with `--limit` without more code.
"""

import hmac
import zlib
from collections.abc import Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address
from pathlib import Path
from typing import Annotated, ClassVar, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from slimsched.core.config import ConfigError, SlimError, convert, read_small_file
from slimsched.serving.gateway.messages import SERVED_QUEUE_S

# -- Refusals: errors that tell the client what went wrong and what to do, with HTTP status and gRPC code.

LONGEST_MESSAGE = 1000
"""Messages are cut here: they may repeat what the client sent, and gRPC drops long ones."""


class RefusalError(SlimError):
    """A request that the server does not carry out. Each class has its HTTP status and gRPC code."""

    status: ClassVar[int]
    grpc_code: ClassVar[str]

    def __init_subclass__(cls, *, status: int, grpc_code: str) -> None:
        cls.status, cls.grpc_code = status, grpc_code

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}…")
        self.retry_after_s = retry_after_s


class BadRequest(RefusalError, status=400, grpc_code="INVALID_ARGUMENT"):  # noqa: N818
    """The request itself is wrong; sending it again will not help."""


class NotOffered(RefusalError, status=400, grpc_code="UNIMPLEMENTED"):  # noqa: N818
    """This server does not have what the request asks for, and will not get it."""


class Unauthenticated(RefusalError, status=401, grpc_code="UNAUTHENTICATED"):  # noqa: N818
    """No token, or the wrong one."""


class Forbidden(RefusalError, status=403, grpc_code="PERMISSION_DENIED"):  # noqa: N818
    """The operator does not allow it."""


class NotFound(RefusalError, status=404, grpc_code="NOT_FOUND"):  # noqa: N818
    """No such path, model or version."""


class MethodNotAllowed(RefusalError, status=405, grpc_code="UNIMPLEMENTED"):  # noqa: N818
    """The path exists, but not for this method."""

    allowed: tuple[str, ...] = ()


class TooMany(RefusalError, status=429, grpc_code="RESOURCE_EXHAUSTED"):  # noqa: N818
    """Too much work is under way; try again a little later."""


class TooLarge(RefusalError, status=413, grpc_code="RESOURCE_EXHAUSTED"):  # noqa: N818
    """A message above the limit; send fewer examples per request."""


class UnsupportedCoding(RefusalError, status=415, grpc_code="INVALID_ARGUMENT"):  # noqa: N818
    """The body is compressed in a way that is not read here."""


class Unavailable(RefusalError, status=503, grpc_code="UNAVAILABLE"):  # noqa: N818
    """The server is not ready, or is shutting down; try again, perhaps at another server."""

    def __init__(self, message: str, retry_after_s: float | None = 1.0) -> None:
        super().__init__(message, retry_after_s)


class TooLate(RefusalError, status=504, grpc_code="DEADLINE_EXCEEDED"):  # noqa: N818
    """The deadline passed or can no longer be met."""


class ExecutionFailed(RefusalError, status=422, grpc_code="FAILED_PRECONDITION"):  # noqa: N818
    """The model could not run on this input."""


REFUSALS = {refusal.__name__: refusal for refusal in RefusalError.__subclasses__()}
"""What processes of this server tell one another, by the names of the classes."""


def retry_of(refusal: RefusalError) -> tuple[tuple[str, str], ...]:
    """Return when to try again, as a header or as trailing metadata; nothing if the refusal does not say."""
    if refusal.retry_after_s is None:
        return ()
    return (("retry-after", f"{max(1, round(refusal.retry_after_s))}"),)


# -- What clients make the gateway keep: bytes and connections, by client address and in total.


def network_of(address: str) -> str:
    """Return the address that a client counts as: one client may have a whole /64 network of IP version 6."""
    if ":" not in address:
        return address  # of version 4, or of no network
    given = IPv6Address(address.partition("%")[0])
    if given.is_loopback:
        return address
    return str(IPv6Network((int(given) >> 64 << 64, 64)).network_address)


class Account:
    """What one client address has here."""

    __slots__ = ("address", "connections", "held_bytes")

    def __init__(self, address: str) -> None:
        self.address, self.connections, self.held_bytes = address, 0, 0


class Ledger:
    """Counts the bytes of requests that are here, from their first byte until they are answered."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self.proxies: frozenset[str] = frozenset()
        """Addresses that many clients share: they may have all that there is."""
        self._accounts: dict[str, Account] = {}

    def open(self, address: str) -> Account:
        """Count one more connection of an address."""
        address = network_of(address)
        account = self._accounts.get(address)
        if account is None:
            account = self._accounts[address] = Account(address)
        account.connections += 1
        return account

    def close(self, account: Account) -> None:
        """Count one connection less; forget an address that has none."""
        account.connections -= 1
        if not account.connections:
            self._accounts.pop(account.address, None)

    def hold(self, account: Account, size: int) -> None:
        """Count bytes that came, or with a negative size bytes that went."""
        account.held_bytes += size
        self.held_bytes += size

    def is_full(self, account: Account, limit_bytes: int) -> bool:
        """Whether all clients hold more than the limit, or this address alone more than half of it."""
        share = 1 if account.address in self.proxies else 2
        return self.held_bytes > limit_bytes or share * account.held_bytes > limit_bytes


# -- The one place where JSON from clients is decoded: whatever is wrong with it is the client's error.

T = TypeVar("T")


def read_body(decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray | memoryview, what: str) -> T:
    """Decode a body by its type, which has the ranges of all numbers; refuse what does not fit."""
    try:
        return decoder.decode(body)
    except RecursionError:
        raise BadRequest(f"the body is not {what}: it is nested too deeply") from None
    except (msgspec.DecodeError, ValueError) as error:  # UnicodeDecodeError is a ValueError
        raise BadRequest(f"the body is not {what}: {error}") from None


# -- The bearer token that clients must send, the same for both protocols.

LONGEST_TOKEN = 4096


CODINGS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""How bytes may be compressed, and how zlib calls it."""


def unpacked(data: bytes | bytearray | memoryview, coding: str, limit_bytes: int) -> bytes:
    """Return compressed bytes as they were; refuse more than the limit without making more than that."""
    reader = zlib.decompressobj(CODINGS[coding])
    try:
        raw = reader.decompress(data, limit_bytes + 1)
    except zlib.error as error:
        raise BadRequest(f"the message is not {coding}: {error}") from None
    if len(raw) > limit_bytes:
        raise TooLarge(f"the message has more than {limit_bytes} bytes when unpacked; send fewer examples")
    if not reader.eof or reader.unused_data:
        raise BadRequest(
            f"the message is not one whole piece of {coding}; send it whole, and nothing behind it"
        )
    return raw


class Token:
    """A token to compare with; an empty one lets everybody in."""

    def __init__(self, text: str) -> None:
        self._wanted = f"Bearer {checked(text)}".encode() if text else b""

    def check(self, authorization: str, place: str = "header Authorization") -> None:
        """Refuse a request that does not hold the token in this place."""
        if self._wanted and not hmac.compare_digest(authorization.encode(), self._wanted):
            raise Unauthenticated(f"a token is required; send the {place}: Bearer TOKEN")


def checked(text: str) -> str:
    """Return the token; refuse one that cannot be sent in a header of HTTP and gRPC alike."""
    if len(text) > LONGEST_TOKEN or not all("!" <= character <= "~" for character in text):
        raise ConfigError(
            f"the token must be at most {LONGEST_TOKEN} visible ASCII characters, without spaces: "
            "others cannot be sent in headers; make one with: openssl rand -hex 32"
        )
    return text


def read_token(text: str, path: Path | None) -> str:
    """Return the token that is given, or the one in a file, without the end of its line."""
    if path is None:
        return checked(text)
    if text:
        raise ConfigError("a token and a file with a token are given; leave one of them out")
    found = read_small_file(path, 2 * LONGEST_TOKEN).decode("utf-8", "replace").strip()
    if not found:
        raise ConfigError(f"{path} is empty; write the token into it")
    return checked(found)


Count = Annotated[int, Meta(ge=1, le=10**6)]
Size = Annotated[int, Meta(ge=1, le=2**40)]
SizeByModel = Annotated[int, Meta(ge=0, le=2**40)]
"""A size in bytes; 0 means that it follows the models."""
Seconds = Annotated[float, Meta(ge=0.01, le=86_400.0)]
CountOrNone = Annotated[int, Meta(ge=0, le=10**6)]
"""A number; 0 means that there is no such limit."""

EXAMPLE_BYTES = 2**10
"""An example under way counts as this much at least: what the gateway keeps for it besides its input."""

FULL_REQUESTS = 1024
"""This many requests with the most examples may be here at once, where memory allows."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the door lets in, in which time, and what it keeps for clients; `docs/reliability.md` explains."""

    examples_per_request: Count = 64
    examples_in_system: CountOrNone = 0
    queue_s: Seconds = SERVED_QUEUE_S  # how long the work ahead of a call without a deadline may take
    body_bytes: SizeByModel = 0  # of one request
    answer_bytes: SizeByModel = 0  # of one answer
    held_bytes: SizeByModel = 0  # of all requests that are here; one address may have half of it
    unread_bytes: SizeByModel = 0  # of all answers that their clients do not read
    connections: Count = 2048
    connections_per_address: Count = 1024
    proxies: str = ""  # addresses that many clients share, with commas between: they may have all there is
    calls: Count = 2048  # gRPC calls at the same time; one address may have half of them
    resets_per_s: Count = 1000  # gRPC calls that one address may take back; twice as many at once
    streams: Count = 32  # of these, streams; one address may have half of them
    pipelined_requests: Count = 32
    pipelined_bytes: Size = 256 * 2**10
    head_bytes: Size = 32 * 2**10
    headers: Count = 100
    head_s: Seconds = 10.0
    grace_s: Seconds = 10.0  # how long a body or an answer may be slower than the pace
    pace_bytes_per_s: Size = 16 * 2**10
    idle_s: Seconds = 75.0
    drain_s: Seconds = 20.0
    shared_regions: Count = 64  # regions of shared memory that clients may register
    shared_bytes: Size = 16 * 2**30  # of all these regions

    def __post_init__(self) -> None:
        self.proxy_addresses  # noqa: B018 - refuses what is no address

    @property
    def proxy_addresses(self) -> frozenset[str]:
        """The addresses that many clients share."""
        try:
            return frozenset(
                [network_of(str(ip_address(one.strip()))) for one in self.proxies.split(",") if one.strip()]
            )
        except ValueError as error:
            raise ValueError(f"proxies: {error}; give addresses such as 10.0.0.7,10.0.0.8") from None

    @property
    def most(self) -> tuple[int, int]:
        """The most examples of a request, and the most bytes of an answer."""
        return self.examples_per_request, self.answer_bytes

    @property
    def sending_s(self) -> float:
        """How long a gRPC client may take to read an answer."""
        return self.grace_s + self.answer_bytes / self.pace_bytes_per_s / 16


def read_limits(settings: Sequence[str]) -> Limits:
    """Read limits as the command line gives them: NAME=VALUE."""
    given: dict[str, str] = {}
    for setting in settings:
        name, is_set, value = setting.partition("=")
        if not is_set or name not in Limits.__struct_fields__:
            known = ", ".join(Limits.__struct_fields__)
            raise ConfigError(f"--limit '{setting}' is not understood; write NAME=VALUE with one of {known}")
        given[name] = value
    return convert(given, Limits, "--limit", strict=False)


def fitted(limits: Limits, row_bytes: int, answer_row_bytes: int, memory_bytes: int) -> Limits:
    """Fill in the sizes that follow the models: the most that one example takes and gives, as raw tensors.

    `memory_bytes` is the memory of this machine.
    """
    full, answer = (limits.examples_per_request * size for size in (row_bytes, answer_row_bytes))
    body_bytes = limits.body_bytes or max(4 * 2**20, full + 2**16)
    answer_bytes = limits.answer_bytes or max(16 * 2**20, answer + 2**16)
    largest = max(body_bytes, limits.examples_per_request * EXAMPLE_BYTES)
    wanted = max(FULL_REQUESTS * full, memory_bytes // 256)  # many full requests, or more of a large memory
    held_bytes = max(96 * 2**20, min(wanted, memory_bytes // 16), 4 * largest)
    return replace(
        limits,
        body_bytes=body_bytes,
        answer_bytes=answer_bytes,
        held_bytes=limits.held_bytes or held_bytes,
        unread_bytes=limits.unread_bytes or max(32 * 2**20, 2 * answer_bytes),
    )


def shared(limits: Limits, fronts: int) -> Limits:
    """Return the share of one of several front processes in what all clients together may have."""
    return replace(
        limits,
        connections=-(-limits.connections // fronts),
        connections_per_address=-(-limits.connections_per_address // fronts),
        calls=-(-limits.calls // fronts),
        resets_per_s=-(-limits.resets_per_s // fronts),
        streams=min(limits.streams, 2 * -(-limits.streams // fronts)),  # the system spreads them unevenly
        held_bytes=max(limits.held_bytes // fronts, 4 * limits.body_bytes),
        unread_bytes=max(limits.unread_bytes // fronts, 2 * limits.answer_bytes),
    )


# -- Encryption.

CIPHERS = ":".join(
    [
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "ECDHE-RSA-CHACHA20-POLY1305",
    ]
)
"""Suites of TLS 1.2: those of Mozilla's "intermediate" grade, with forward secrecy and without CBC.

The client chooses among them: without AES in hardware, ChaCha20 is faster. TLS 1.3 has good ones only.
"""
