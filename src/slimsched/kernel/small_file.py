"""Small files that the user names: keys, tokens, saved goals."""

import os
import stat
from pathlib import Path

from slimsched.kernel.errors import ConfigError


def read_small_file(path: Path, limit_bytes: int) -> bytes:
    """Read a file that is not larger than a limit; refuse devices and pipes, which may never end.

    Raises OSError as `Path.read_bytes` does where the file is missing or cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ConfigError(f"{path} is not a regular file; name one")
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise ConfigError(f"{path} is larger than {limit_bytes} bytes; is it the right file?")
    return content
