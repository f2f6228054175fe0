"""Reading Slurm's `--json` answers, which change shape with Slurm's version.

22.05 writes plain numbers and one word for a state; 23.02 and newer write
{"set": true, "infinite": false, "number": 7} and lists of words. Only the first shape is tried out
against a running Slurm here; the second follows Slurm's published data parsers.
"""

from typing import Any

Reply = dict[str, Any]

_UNLIMITED = 0xFFFFFFFE  # Slurm's NO_VAL and INFINITE are the two largest 32-bit numbers


def number(value: Any) -> float | None:
    """A number in either shape, or None when it is absent, unset or unlimited."""
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite", False):
            return None
        value = value.get("number")
    if value is None or value == "" or float(value) >= _UNLIMITED:
        return None
    return float(value)


def words(value: Any) -> frozenset[str]:
    """State or flags as upper-case words, from one word or a list of them."""
    if isinstance(value, str):
        value = [value]
    return frozenset(str(word).upper() for word in value or ())
