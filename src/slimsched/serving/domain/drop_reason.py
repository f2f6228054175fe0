"""Why a request was given up."""

from enum import StrEnum


class DropReason(StrEnum):
    """The reasons there are; whoever turns a drop into an answer for a client looks at these alone."""

    QUEUE_FULL = "queue full"
    DEADLINE_PASSED = "deadline passed"
    DEADLINE_OUT_OF_REACH = "deadline out of reach"
    CANCELLED = "cancelled"
    EXECUTION_FAILED = "execution failed"
