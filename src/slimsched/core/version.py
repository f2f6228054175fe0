"""The version of the package, which comes from the tag that it was built from."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("slim-scheduler")
except PackageNotFoundError:  # a bare copy of the source has none
    __version__ = "0+unknown"
