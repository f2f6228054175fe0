"""The images that the API tests send."""

import numpy as np
import pytest
from numpy.typing import NDArray


@pytest.fixture(scope="session")
def images() -> NDArray[np.uint8]:
    """Eight random images."""
    return np.random.default_rng(0).integers(0, 256, (8, 3, 32, 32), dtype=np.uint8)
