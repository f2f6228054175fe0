"""The trained SlimResNet that comes with the package: its weights, its card, and which answers are right."""

from importlib.resources import files
from pathlib import Path

FOLDER = Path(str(files(__name__)))
CARD = FOLDER / "slimresnet-cifar100.json"
QUALITY = FOLDER / "slimresnet-cifar100-correct.npz"
