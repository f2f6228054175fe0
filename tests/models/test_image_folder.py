from pathlib import Path

import numpy as np
import pytest
from toy import write_folder

from slimsched.core.config import DataError
from slimsched.models.data import image_folder
from slimsched.models.data.dataset import open_images


def test_images_of_any_size_become_squares_with_their_folders_label(tmp_path: Path) -> None:
    data = image_folder.read(write_folder(tmp_path / "photos"), side=24)
    assert data.images.shape == (36, 3, 24, 24)
    assert data.classes == ("blue", "green", "red")
    assert np.array_equal(data.images.mean(axis=(2, 3)).argmax(axis=1), 2 - data.labels)


def test_train_and_test_may_lie_in_folders_of_that_name(tmp_path: Path) -> None:
    write_folder(tmp_path / "train", count=5)
    write_folder(tmp_path / "test", count=2)
    assert len(open_images(tmp_path, "train", side=16)) == 15
    assert len(open_images(tmp_path, "test", side=16)) == 6


def test_a_class_the_network_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="class 'blue', which the network was not trained on"):
        image_folder.read(write_folder(tmp_path / "photos"), side=16, classes=("red", "green"))


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", count=1)
    (tmp_path / "photos" / "red" / "broken.png").write_text("no image")
    with pytest.raises(DataError, match=r"broken\.png is no readable image"):
        image_folder.read(tmp_path / "photos", side=16)


def test_an_empty_or_missing_folder_says_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class folders"):
        open_images(tmp_path, "train")
    with pytest.raises(DataError, match="--data or SLIM_DATA"):
        open_images(tmp_path / "nowhere", "train")
