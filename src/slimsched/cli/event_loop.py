"""The event loop commands run in."""

from slimsched.execution.live.event_loop import run

__all__ = ["run"]
