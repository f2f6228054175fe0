import io
import lzma
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from toy import read_part

from slimsched.core.config import DataError
from slimsched.models.data import cifar


def encode(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> bytes:
    """Pack images the way the parts are packed: predict, take the error, fold its sign."""
    red, green, blue = (images[:, c].astype(np.int16) for c in range(3))
    wrap = lambda plane: plane.astype(np.int8).astype(np.int16)  # noqa: E731
    planes = np.stack([green, wrap(red - green), wrap(blue - green)])
    left, upper, corner = (np.zeros_like(planes) for _ in range(3))
    left[..., :, 1:], upper[..., 1:, :], corner[..., 1:, 1:] = (
        planes[..., :, :-1],
        planes[..., :-1, :],
        planes[..., :-1, :-1],
    )
    median = np.clip(left + upper - corner, np.minimum(left, upper), np.maximum(left, upper))
    median[..., 0, :], median[..., :, 0] = left[..., 0, :], upper[..., :, 0]
    error = wrap(planes - median)
    zigzag = ((error << 1) ^ (error >> 15)).astype(np.uint8)
    return lzma.compress(np.stack([labels // 5, labels], axis=1).tobytes() + zigzag.tobytes())


def some_images(count: int = 7) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    rng = np.random.default_rng(3)
    smooth = rng.integers(0, 256, (count, 3, 1, 32)) + rng.integers(-40, 40, (count, 3, 32, 32))
    return np.clip(smooth, 0, 255).astype(np.uint8), rng.integers(0, 100, count).astype(np.uint8)


def test_a_packed_part_gives_back_the_images_and_fine_labels(tmp_path: Path) -> None:
    images, labels = some_images()
    (tmp_path / "test-00.xz").write_bytes(encode(images, labels))
    part = read_part(tmp_path / "test-00.xz")
    assert np.array_equal(part.images, images)
    assert np.array_equal(part.labels, labels)


def test_other_images_than_the_official_ones_are_refused(tmp_path: Path) -> None:
    (tmp_path / "test-00.xz").write_bytes(encode(*some_images()))
    with pytest.raises(DataError, match=r"the test images are damaged \(SHA-1"):
        cifar.read(tmp_path, "test")
    with pytest.raises(DataError, match="holds no train images"):
        cifar.read(tmp_path, "train")


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    (tmp_path / "test-00.xz").write_bytes(encode(*some_images())[:-9])
    with pytest.raises(DataError, match=r"test-00\.xz is damaged"):
        cifar.read(tmp_path, "test")


def test_the_released_archive_is_read_in_place(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / cifar.ARCHIVE, "w:gz") as tar:
        for name, content in {
            "test.bin": b"\0" * 3074,
            "train.bin": b"",
            "fine_label_names.txt": b"a " * 100,
        }.items():
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    with pytest.raises(DataError, match="test images are damaged"):
        cifar.read(tmp_path, "test")
    assert (cifar.unpack_archive(tmp_path / cifar.ARCHIVE) / "test.bin").stat().st_size == 3074


def test_a_folder_without_the_data_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="slim data fetch"):
        cifar.read(tmp_path, "test")


def test_the_pickled_release_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meta").write_bytes(b"")
    with pytest.raises(DataError, match="pickled Python release"):
        cifar.read(tmp_path, "test")


@pytest.mark.data
@pytest.mark.skipif("SLIM_DATA" not in os.environ, reason="SLIM_DATA names no folder with CIFAR-100")
def test_the_official_test_images_are_read_whole() -> None:
    data = cifar.read(Path(os.environ["SLIM_DATA"]), "test")
    assert len(data) == 10_000
    assert np.bincount(data.labels).tolist() == [100] * 100
    assert data.classes[28] == "cup"
