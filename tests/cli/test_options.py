"""A struct of options becomes the options of a command."""

from typing import Annotated

import pytest
import typer
from click.testing import Result
from msgspec import Meta, Struct
from typer.testing import CliRunner

from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import ConfigError, Rate


class Load(Struct, frozen=True, kw_only=True):
    rate: Annotated[float, typer.Option("--rate", help="Requests per second.")] = 5.0
    kill: Annotated[list[str], typer.Option("--kill", help="A server.")] = []


class FastLoad(Load, frozen=True, kw_only=True):
    rate: Annotated[float, typer.Option("--rate", help="Requests per second.")] = 50.0


def invoke(kind: type[Struct], *words: str) -> Result:
    app = typer.Typer()

    def command(load, name, as_json=False) -> None:  # type: ignore[no-untyped-def]
        """Say what was given."""
        print(load, name, as_json)

    command.__annotations__ = {"load": kind, "name": Annotated[str, typer.Argument()], "as_json": AsJson}
    app.command()(with_options(command))
    return CliRunner().invoke(app, words)


def run(kind: type[Struct], *words: str) -> str:
    result = invoke(kind, *words)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def test_fields_become_options_and_arrive_as_a_struct() -> None:
    said = run(Load, "one", "--rate", "3", "--kill", "a", "--kill", "b", "--json")
    assert said == "Load(rate=3.0, kill=['a', 'b']) one True"


@pytest.mark.parametrize(("kind", "said"), [(Load, 5.0), (FastLoad, 50.0)])
def test_a_subclass_changes_a_default(kind: type[Load], said: float) -> None:
    assert run(kind, "one") == f"{kind.__name__}(rate={said}, kill=[]) one False"


def test_the_help_shows_every_option() -> None:
    shown = run(Load, "--help")
    assert all(word in shown for word in ("--rate", "--kill", "--json", "Say what was given", "name"))


class Told(Struct, frozen=True, kw_only=True):
    per_second: Annotated[Rate, "Requests per second."] = 5.0
    token: Annotated[str, Meta(description="A secret.", extra={"envvar": "SLIM_TEST_TOKEN"})] = ""


def test_a_text_beside_a_type_is_the_help_of_the_flag_with_the_name_of_the_field(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = run(Told, "--help")
    assert all(word in shown for word in ("--per-second", "Requests per second.", "--token", "A secret."))
    monkeypatch.setenv("SLIM_TEST_TOKEN", "abc")
    assert run(Told, "one", "--per-second", "3") == "Told(per_second=3.0, token='abc') one False"
    refused = invoke(Told, "one", "--per-second", "-1").exception
    assert isinstance(refused, ConfigError)
    assert str(refused).startswith("--per-second is -1; give a number above 0")
