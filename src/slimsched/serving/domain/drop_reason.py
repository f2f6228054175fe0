"""Why a request was given up."""

from enum import StrEnum


class DropReason(StrEnum):
    """All reasons for which a request is dropped; the reply to a client depends only on these."""

    QUEUE_FULL = "queue full"
    OVERLOADED = "too much work is ahead to meet the deadline"
    DEADLINE_PASSED = "deadline passed"
    DEADLINE_OUT_OF_REACH = "deadline out of reach"
    CANCELLED = "cancelled"
    EXECUTION_FAILED = "execution failed"
    NO_SERVER = "no server is left"
    SHUTTING_DOWN = "shutting down"
