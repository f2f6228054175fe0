"""The event loop that gateway and servers run in: uvloop's where it is installed, else asyncio's own."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    found: T = uvloop.run(work)
    return found
