"""The event loop commands run in."""

from slimsched.serving.execution.live.event_loop import run

__all__ = ["run"]
