"""Downloads over HTTP: they resume, check the hash, and put the file in place only when it is complete."""

import hashlib
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from slimsched.core.config import DataError

CHUNK_BYTES = 1 << 18
TIMEOUT_S = 30.0


def download(
    url: str,
    path: Path,
    *,
    md5: str,
    advance: Callable[[int, int | None], None] = lambda done_bytes, total_bytes: None,
) -> Path:
    """Download `url` to `path`, or resume an earlier try; call `advance` with bytes done and total."""
    if path.is_file() and _md5(path) == md5:
        return path
    partial = path.with_name(f"{path.name}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    have = partial.stat().st_size if partial.is_file() else 0
    total: int | None = None
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            resumed = response.status == 206
            done = have if resumed else 0
            length = response.headers.get("Content-Length")
            total = done + int(length) if length else None
            with partial.open("ab" if resumed else "wb") as file:
                while chunk := response.read(CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    advance(done, total)
    except urllib.error.HTTPError as error:
        if error.code != 416:  # 416: nothing is left to fetch
            raise DataError(f"{url} answered {error.code} {error.reason}; check the address") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        raise DataError(f"cannot fetch {url}: {error}; run the command again to go on from there") from None
    if total is not None and (missing := total - partial.stat().st_size) > 0:
        raise DataError(f"{url} broke off {missing} bytes early; run the command again to go on")
    if (digest := _md5(partial)) != md5:
        partial.unlink()
        raise DataError(f"{url} is not the expected file: MD5 {digest}, expected {md5}; it was deleted")
    partial.replace(path)
    return path


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()
