"""CIFAR-100 as released (train.bin, test.bin or their tar.gz) or packed without loss into .xz parts.

A packed part holds the coarse and fine label of each image, then its pixels as prediction errors: green is
predicted from its left and upper neighbours, red and blue as their difference from green (the predictor of
JPEG-LS), and each error e is stored as the unsigned number 2 e or -2 e - 1. Both forms are checked by SHA-1.
"""

import hashlib
import lzma
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from slimsched.core.config import DataError
from slimsched.models.data.images import ImageSet

# -- Downloads over HTTP: they resume, check the hash, and put the file in place only when it is complete.

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


SIDE = 32
RECORD_BYTES = 2 + 3 * SIDE * SIDE
SHA1 = {
    "train": "e207cd2e05b73b1393c74c7f5e7bea451d63e08e",
    "test": "8fb6623e830365ff53cf14adec797474f5478006",
}
ARCHIVE = "cifar-100-binary.tar.gz"
_SUB_FOLDERS = ("", "cifar100", "cifar-100-binary", "cifar-100")


def find(folder: Path) -> Path | None:
    """Return the folder, this one or a sub-folder, that holds CIFAR-100; unpacked data comes first."""
    for pattern in ("test.bin", ARCHIVE, "test-*.xz"):
        for name in _SUB_FOLDERS:
            if any((folder / name).glob(pattern)):
                return folder / name
    return None


def read(folder: Path, split: str) -> ImageSet:
    """Read the official 'train' or 'test' images in file order and check their hash."""
    inner = find(folder)
    if inner is None:
        pickled = any((folder / name / "meta").is_file() for name in _SUB_FOLDERS)
        raise DataError(
            f"{folder} holds the pickled Python release, which is not read; "
            "fetch the binary one with: slim data fetch"
            if pickled
            else f"no CIFAR-100 in {folder}: expected train.bin and test.bin, {ARCHIVE} or packed *.xz "
            f"parts; fetch it with: slim data fetch --data {folder}"
        )
    raw = _released_bytes(inner, split)
    if raw is None:
        raw = _packed_bytes(inner, split)
    digest = hashlib.sha1(raw).hexdigest()
    if digest != SHA1[split]:
        raise DataError(f"{inner}: the {split} images are damaged (SHA-1 {digest}); fetch them again")
    return _image_set(np.frombuffer(raw, np.uint8).reshape(-1, RECORD_BYTES), class_names(inner))


def unpack_archive(archive: Path) -> Path:
    """Unpack the released archive into a folder beside it, so that later reads are fast."""
    folder = archive.parent / "cifar-100-binary"
    folder.mkdir(exist_ok=True)
    for name in ("train.bin", "test.bin", "fine_label_names.txt"):
        (folder / name).write_bytes(_member(archive, name))
    return folder


def class_names(folder: Path) -> tuple[str, ...]:
    """Read the hundred fine class names, from the file beside the images or from the archive."""
    path = folder / "fine_label_names.txt"
    if path.is_file():
        names = tuple(path.read_text().split())
    elif (folder / ARCHIVE).is_file():
        names = tuple(_member(folder / ARCHIVE, "fine_label_names.txt").decode().split())
    else:
        names = tuple(f"class {label}" for label in range(100))
    if len(names) != 100:
        raise DataError(f"{path} names {len(names)} classes, expected 100; fetch the data again")
    return names


def _released_bytes(folder: Path, split: str) -> bytes | None:
    if (folder / f"{split}.bin").is_file():
        return (folder / f"{split}.bin").read_bytes()
    if (folder / ARCHIVE).is_file():
        return _member(folder / ARCHIVE, f"{split}.bin")
    return None


def _member(archive: Path, name: str) -> bytes:
    try:
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"cifar-100-binary/{name}")
            assert member is not None
            return member.read()
    except (tarfile.TarError, KeyError, EOFError, OSError) as error:
        raise DataError(f"{archive} is damaged ({error}); delete it and fetch it again") from None


def _packed_bytes(folder: Path, split: str) -> bytes:
    parts = sorted(folder.glob(f"{split}-*.xz"))
    if not parts:
        raise DataError(f"{folder} holds no {split} images; expected {split}.bin or {split}-*.xz")
    return b"".join(_unpack(part).tobytes() for part in parts)


def _unpack(path: Path) -> NDArray[np.uint8]:
    """Decode one packed part into official records (n, 3074)."""
    try:
        raw = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8)
    except (lzma.LZMAError, OSError) as error:
        raise DataError(f"{path} is damaged ({error}); copy or fetch it again") from None
    count, rest = divmod(len(raw), RECORD_BYTES)
    if rest or not count:
        raise DataError(f"{path} holds {len(raw)} bytes, not a whole number of images; copy it again")
    labels = raw[: 2 * count].reshape(count, 2)
    pixels = _decode(raw[2 * count :].reshape(3, count, SIDE, SIDE))
    return np.concatenate([labels, pixels.reshape(count, -1)], axis=1)


def _decode(coded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Prediction errors (3, n, 32, 32) of green, red - green, blue - green -> images (n, 3, 32, 32)."""
    zigzag = np.ascontiguousarray(coded.transpose(2, 3, 0, 1)).astype(np.int16)  # (32, 32, 3, n)
    error = (zigzag >> 1) ^ -(zigzag & 1)
    plane = np.zeros_like(error)
    for y in range(SIDE):
        for x in range(SIDE):
            value = _predict(plane, y, x) + error[y, x]  # (3, n)
            plane[y, x, 0] = value[0] & 255
            plane[y, x, 1:] = value[1:].astype(np.int8)
    green = plane[:, :, 0]
    rgb = np.stack([plane[:, :, 1] + green, green, plane[:, :, 2] + green]) & 255  # (3, 32, 32, n)
    return np.ascontiguousarray(rgb.astype(np.uint8).transpose(3, 0, 1, 2))


def _predict(plane: NDArray[np.int16], y: int, x: int) -> NDArray[np.int16]:
    """Return the median of left, upper and left + upper - corner; at the border, the one neighbour."""
    if y == 0 or x == 0:
        return plane[y, x - 1] if x else plane[y - 1, x] if y else np.zeros_like(plane[0, 0])
    left, upper, corner = plane[y, x - 1], plane[y - 1, x], plane[y - 1, x - 1]
    low, high = np.minimum(left, upper), np.maximum(left, upper)
    predicted: NDArray[np.int16] = np.clip(left + upper - corner, low, high)
    return predicted


def _image_set(records: NDArray[np.uint8], classes: tuple[str, ...]) -> ImageSet:
    """Records of coarse label, fine label, pixels -> images with their fine labels."""
    images = records[:, 2:].reshape(-1, 3, SIDE, SIDE)
    return ImageSet(images=images, labels=records[:, 1].astype(np.int64), classes=classes)
