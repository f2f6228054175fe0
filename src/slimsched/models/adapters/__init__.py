"""Adapters: a model of your own as an ElasticModel, in a few lines."""

from slimsched.models.adapters.exits import Exits
from slimsched.models.adapters.family import Family
from slimsched.models.adapters.nested import Nested
from slimsched.models.adapters.switched import Switched

__all__ = ["Exits", "Family", "Nested", "Switched"]
