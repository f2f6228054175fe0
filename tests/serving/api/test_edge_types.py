"""Every number that comes from outside has a range in its type, so that a new field cannot be forgotten."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import Struct, inspect

from slimsched.core.config import ConfigError
from slimsched.serving.api import http
from slimsched.serving.api.calls import RequestParameters, read_parameters
from slimsched.serving.api.limits import BadRequest, Limits, read_limits
from slimsched.serving.api.pages import GoalRequest
from slimsched.serving.api.shared_memory import RegionSpan, Registration

EDGE: list[type[Struct]] = [
    RequestParameters,
    Limits,
    GoalRequest,
    RegionSpan,
    Registration,
    http._Infer,
]


def numbers(kind: inspect.Type, where: str) -> Iterator[tuple[str, Any]]:
    """Yield every number inside a type, and where it is."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            yield where, kind
        case inspect.UnionType(types=kinds):
            for one in kinds:
                yield from numbers(one, where)
        case inspect.ListType(item_type=item):
            yield from numbers(item, f"{where}[]")
        case inspect.StructType(fields=fields):
            for field in fields:
                yield from numbers(field.type, f"{where}.{field.name}")


@pytest.mark.parametrize("kind", EDGE)
def test_every_number_has_a_lowest_and_a_highest_value(kind: type[Struct]) -> None:
    for where, number in numbers(inspect.type_info(kind), kind.__name__):
        assert number.ge is not None or number.gt is not None, f"{where} has no lowest value"
        assert number.le is not None or number.lt is not None, f"{where} has no highest value"


@pytest.mark.parametrize("name", RequestParameters.__struct_fields__)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), 10**400, -(10**400), "nan", -1e300])
def test_no_parameter_takes_what_is_no_sensible_number(name: str, value: float | str) -> None:
    if name in ("plan", "width") and isinstance(value, str):
        return  # the name of a plan, which the model knows or not
    with pytest.raises(BadRequest, match=f"parameter {name} is"):
        read_parameters({name: value})


@pytest.mark.parametrize("name", sorted({*Limits.__struct_fields__} - {"proxies"}))
def test_every_limit_can_be_set_and_none_to_nonsense(name: str) -> None:
    assert getattr(read_limits([f"{name}=7"]), name) == 7
    for value in ("nan", "inf", "-1", "x", "", "1e400", "true"):
        with pytest.raises(ConfigError, match="--limit"):
            read_limits([f"{name}={value}"])


def test_proxies_are_addresses() -> None:
    given = read_limits(["proxies=10.0.0.7, 2001:db8::1,::1"])
    assert given.proxy_addresses == {"10.0.0.7", "2001:db8::", "::1"}, "a client may have a whole network"
    assert read_limits(["proxies="]).proxy_addresses == frozenset()
    for value in ("7", "example.org", "10.0.0.7;10.0.0.8"):
        with pytest.raises(ConfigError, match="give addresses such as"):
            read_limits([f"proxies={value}"])


@pytest.mark.parametrize("setting", ["connections", "unknown=3", "=3", ""])
def test_a_setting_that_is_no_limit_is_refused(setting: str) -> None:
    with pytest.raises(ConfigError, match="write NAME=VALUE"):
        read_limits([setting])


def test_the_defaults_are_within_the_ranges() -> None:
    assert msgspec.convert(msgspec.to_builtins(Limits()), Limits) == Limits()
