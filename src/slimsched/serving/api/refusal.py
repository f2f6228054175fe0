"""Refusals: errors that tell the client what went wrong and what to do, with HTTP status and gRPC code."""

from typing import ClassVar

from slimsched.core.config import SlimError

LONGEST = 1000
"""Messages are cut here: they may repeat what the client sent, and gRPC drops long ones."""


class RefusalError(SlimError):
    """A request that the server does not carry out. Each class has its HTTP status and gRPC code."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retry_after_s: float | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message if len(message) <= LONGEST else f"{message[:LONGEST]}…")


class BadRequest(RefusalError):  # noqa: N818
    """The request itself is wrong; sending it again will not help."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"


class NotOffered(RefusalError):  # noqa: N818
    """This server does not have what the request asks for, and will not get it."""

    status = 400
    grpc_code = "UNIMPLEMENTED"


class Unauthenticated(RefusalError):  # noqa: N818
    """No token, or the wrong one."""

    status = 401
    grpc_code = "UNAUTHENTICATED"


class Forbidden(RefusalError):  # noqa: N818
    """The operator does not allow it."""

    status = 403
    grpc_code = "PERMISSION_DENIED"


class NotFound(RefusalError):  # noqa: N818
    """No such path, model or version."""

    status = 404
    grpc_code = "NOT_FOUND"


class MethodNotAllowed(RefusalError):  # noqa: N818
    """The path exists, but not for this method."""

    status = 405
    grpc_code = "UNIMPLEMENTED"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class TooMany(RefusalError):  # noqa: N818
    """Too much work is under way; try again a little later."""

    status = 429
    grpc_code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLarge(RefusalError):  # noqa: N818
    """A message above the limit; send fewer examples per request."""

    status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class UnsupportedCoding(RefusalError):  # noqa: N818
    """The body is compressed in a way that is not read here."""

    status = 415
    grpc_code = "INVALID_ARGUMENT"


class Unavailable(RefusalError):  # noqa: N818
    """The server is not ready, or is shutting down; try again, perhaps at another server."""

    status = 503
    grpc_code = "UNAVAILABLE"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooLate(RefusalError):  # noqa: N818
    """The deadline passed or can no longer be met."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class ExecutionFailed(RefusalError):  # noqa: N818
    """The model could not run on this input."""

    status = 422
    grpc_code = "FAILED_PRECONDITION"


def retry_of(refusal: RefusalError) -> tuple[tuple[str, str], ...]:
    """Return when to try again, as a header or as trailing metadata; nothing if the refusal does not say."""
    if refusal.retry_after_s is None:
        return ()
    return (("retry-after", f"{max(1, round(refusal.retry_after_s))}"),)
