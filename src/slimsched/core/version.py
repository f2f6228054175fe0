"""The version of the package, which comes from the tag that it was built from."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    """Return the version of the installed package; a bare copy of the source has none."""
    try:
        return version("slim-scheduler")
    except PackageNotFoundError:
        return "0+unknown"


__version__ = _installed()
