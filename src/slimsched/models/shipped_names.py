"""The names of the models that come with the package, and of the one to use where none is named."""

SLIMRESNET, SLIMVIT, SLIMPAIR = "slimresnet", "slimvit", "slimpair"
SHIPPED_MODELS = (SLIMRESNET, SLIMVIT, SLIMPAIR)
DEFAULT_MODEL = SLIMRESNET
