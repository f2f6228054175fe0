"""Paths that a command writes to, checked before it starts: a run of an hour must not end at a bad path."""

from pathlib import Path

from slimsched.cli.failure import need
from slimsched.core.config import ConfigError

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")


def file_to_write(path: Path | None) -> Path | None:
    """Refuse a file that cannot be written: a folder, or one in a folder that is not there."""
    if path is None:
        return None
    if path.is_dir():
        raise ConfigError(f"cannot write to {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write to {path}: there is no folder {path.parent}; make it first")
    return path


def picture(path: Path | None) -> Path | None:
    """Refuse a picture that cannot be drawn or written, or is of an unknown kind."""
    if path is None:
        return None
    if path.suffix.lower() not in PICTURES:
        kind = f"of kind '{path.suffix}'" if path.suffix else "without a kind"
        raise ConfigError(f"cannot draw {path}, a file {kind}; end its name in {', '.join(PICTURES)}")
    need("matplotlib")
    return file_to_write(path)
