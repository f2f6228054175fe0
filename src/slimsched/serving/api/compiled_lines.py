"""Which of the compiled lines are not used, and what would change that.

Everything works without them, only slower. So an installation that lacks one must say so.
"""

import os
import sys
from collections.abc import Callable
from importlib import import_module

NEEDS = {"HTTP": "a C++ compiler", "gRPC": "a C++ compiler and nghttp2 (Debian: libnghttp2-dev)"}
"""What must be installed before the package, so that a line is compiled."""
MODULES = {"HTTP": "_express", "gRPC": "_express_grpc"}


def unused_lines(*, has_tls: bool, load: Callable[[str], object] = import_module) -> list[str]:
    """Say in a sentence each why a compiled line is not used; nothing if both are."""
    if os.environ.get("SLIM_PURE"):
        return ["SLIM_PURE is set: HTTP and gRPC are read without the compiled lines, which is slower"]
    if has_tls:
        return ["with TLS, HTTP and gRPC are read without the compiled lines, which is slower"]
    if not sys.platform.startswith("linux"):
        return ["HTTP and gRPC are read without the compiled lines, which is slower: they need Linux"]
    found = ((protocol, _lack(protocol, load)) for protocol in MODULES)
    return [
        f"the compiled line of {protocol} is missing, so {protocol} is slower: {why}"
        for protocol, why in found
        if why
    ]


def _lack(protocol: str, load: Callable[[str], object]) -> str:
    """Say why the line of a protocol cannot be loaded; nothing if it can."""
    package = __name__.rpartition(".")[0]
    try:
        load(f"{package}.{MODULES[protocol]}")
    except ModuleNotFoundError:
        return f"install {NEEDS[protocol]}, then reinstall slim-scheduler"
    except ImportError as error:  # a library that it was linked with is not here
        return f"{error}; install {NEEDS[protocol]}, then reinstall slim-scheduler"
    return ""
