"""The names of the models that come with the package, and of the one to use where none is named."""

SLIMRESNET, SLIMVIT = "slimresnet", "slimvit"
SHIPPED_MODELS = (SLIMRESNET, SLIMVIT)
DEFAULT_MODEL = SLIMRESNET
