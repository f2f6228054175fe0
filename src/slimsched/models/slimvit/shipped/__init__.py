"""The trained SlimViT that comes with the package: a model folder as `slim model train` writes it."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files(__name__)))
