"""A folder of pictures as a user might bring it: five classes of shapes and textures in any colour."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 64
KINDS = ("checks", "disc", "frame", "stripes", "triangle")


def picture(kind: str, rng: np.random.Generator) -> NDArray[np.uint8]:
    """One noisy picture (64, 64, 3): position, size, colours and brightness are random, the kind is not."""
    y, x = np.mgrid[:SIDE, :SIDE].astype(float)
    centre_y, centre_x = rng.uniform(24, 40, 2)
    size, period, phase = rng.uniform(14, 22), rng.uniform(8, 14), rng.uniform(0, 14)
    down, right = y - centre_y, x - centre_x
    mask = {
        "checks": (np.floor((x + phase) / period) + np.floor((y + phase) / period)) % 2 == 0,
        "disc": down**2 + right**2 < size**2,
        "frame": (np.maximum(abs(down), abs(right)) < size) & (np.maximum(abs(down), abs(right)) > size - 6),
        "stripes": np.floor((x * rng.uniform(-0.4, 0.4) + y + phase) / period) % 2 == 0,
        "triangle": (down < size * 0.8) & (down > 2 * abs(right) - size),
    }[kind]
    ink, paper = rng.uniform(0, 255, (2, 3))
    while np.abs(ink - paper).max() < 80:
        ink = rng.uniform(0, 255, 3)
    pixels = np.where(mask[:, :, None], ink, paper) + rng.normal(0, 20, (SIDE, SIDE, 3))
    return np.clip(pixels, 0, 255).astype(np.uint8)


def write_pictures(folder: Path, count: int = 60, seed: int = 0) -> Path:
    """Write `count` pictures of each kind into one sub-folder per class."""
    rng = np.random.default_rng(seed)
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
        for index in range(count):
            Image.fromarray(picture(kind, rng)).save(folder / kind / f"{index:03}.png")
    return folder
