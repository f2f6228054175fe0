"""A part is chosen by name, entry point or file, and its options are typed."""

from pathlib import Path
from textwrap import dedent
from typing import Literal

import pytest

from slimsched.core.config import ConfigError, UnknownNameError
from slimsched.core.plugins import PluginTable


class Lamp:
    """Something to switch on; `room` is what the program passes."""

    def __init__(
        self,
        *,
        watts: float = 40.0,
        count: int = 1,
        dimmed: bool = False,
        colour: Literal["warm", "cold"] = "warm",
        label: str = "",
        file: Path | None = None,
        room: object = None,
        parts: list[str] | None = None,
    ) -> None:
        self.watts, self.count, self.dimmed, self.colour = watts, count, dimmed, colour
        self.label, self.file, self.room = label, file, room


def candle(hours: float, scent: str = "none") -> Lamp:
    if hours < 0:
        raise ConfigError("a candle burns for at least no time; give hours of 0 or more")
    return Lamp(watts=hours, label=scent)


LAMPS: PluginTable[Lamp] = PluginTable(
    kind="lamp", group="slimsched.test_lamps", builtin={"lamp": Lamp, "candle": candle}, result=Lamp
)


def test_a_bare_name_takes_the_defaults() -> None:
    lamp = LAMPS.make("lamp")
    assert (lamp.watts, lamp.count, lamp.colour, lamp.file) == (40.0, 1, "warm", None)


def test_options_are_typed_by_their_annotations() -> None:
    lamp = LAMPS.make("lamp:watts=2.5:count=3:dimmed=true:colour=cold:label=a b:file=x/y=z.json")
    assert (lamp.watts, lamp.count, lamp.dimmed) == (2.5, 3, True)
    assert (lamp.colour, lamp.label, lamp.file) == ("cold", "a b", Path("x/y=z.json"))
    assert LAMPS.make("lamp:file=none").file == Path("none")


def test_values_without_a_name_go_to_the_options_in_order() -> None:
    lamp = LAMPS.make("candle:7:rose")
    assert (lamp.watts, lamp.label) == (7.0, "rose")
    assert LAMPS.make("candle:scent=rose:7").watts == 7.0


def test_what_the_part_itself_refuses_is_told_with_the_whole_spec() -> None:
    with pytest.raises(ConfigError, match="lamp 'candle:-1': a candle burns"):
        LAMPS.make("candle:-1")


def test_context_reaches_those_who_have_a_parameter_for_it() -> None:
    room = object()
    assert LAMPS.make("lamp", room=room).room is room
    assert LAMPS.make("candle:1", room=room).room is None


def test_context_is_never_an_option() -> None:
    table: PluginTable[Lamp] = PluginTable(
        kind="lamp", group="none", builtin={"lamp": Lamp}, context=["watts"]
    )
    with pytest.raises(ConfigError, match="unknown option 'watts'"):
        table.make("lamp:watts=3")
    assert table.make("lamp", watts=3.0).watts == 3.0


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("lamp:watt=3", "unknown option 'watt'; its options: watts \\(a number\\), count"),
        ("lamp:parts=a", "unknown option 'parts'"),
        ("lamp:watts=much", "watts is 'much'; give a number"),
        ("lamp:watts=nan", "watts is 'nan'; give a number"),
        ("lamp:watts=inf", "watts is 'inf'; give a number"),
        ("lamp:count=1.5", "count is '1.5'; give a whole number"),
        ("lamp:dimmed=maybe", "dimmed is 'maybe'; give true or false"),
        ("lamp:colour=blue", "colour is 'blue'; give one of warm, cold"),
        ("lamp:count=1:count=2", "'count' is given twice"),
        ("candle", "option 'hours' is missing"),
        ("candle:1:2:3", "nothing takes '3'"),
        ("sun", "unknown lamp 'sun'; known: lamp, candle, or a class in a file"),
        ("nowhere.py:Lamp", "no file nowhere.py"),
    ],
)
def test_a_wrong_spec_says_what_is_known(spec: str, words: str) -> None:
    with pytest.raises((ConfigError, UnknownNameError), match=words):
        LAMPS.make(spec)


def write(path: Path, text: str) -> Path:
    path.write_text(dedent(text))
    return path


def test_a_class_in_a_file_is_used_like_a_built_in_one(tmp_path: Path) -> None:
    own = write(
        tmp_path / "own.py",
        """
        from __future__ import annotations
        from dataclasses import dataclass

        @dataclass
        class Torch:
            hours: float = 1.0
            def watts(self) -> float:
                return self.hours
        """,
    )
    table: PluginTable[Lamp] = PluginTable(kind="lamp", group="none", builtin={})
    assert table.make(f"{own}:Torch:hours=3").watts() == 3.0
    assert type(table.make(f"{own}:Torch")) is type(table.make(f"{own}:Torch:4"))


def test_a_file_without_the_class_says_which_it_has(tmp_path: Path) -> None:
    own = write(tmp_path / "own.py", "class Torch: pass\n")
    for spec, words in [
        (f"{own}", "names no class; write .*it has: Torch"),
        (f"{own}:Lamp", "has no class 'Lamp'; it has: Torch"),
        (f"{own}:Torch", "is not a lamp: derive it from .*Lamp"),
    ]:
        with pytest.raises(ConfigError, match=words):
            LAMPS.make(spec)


def test_a_file_that_cannot_be_run_says_why(tmp_path: Path) -> None:
    own = write(tmp_path / "own.py", "import nothing_of_the_kind\n")
    with pytest.raises(ConfigError, match=r"own\.py cannot be loaded: ModuleNotFoundError"):
        LAMPS.make(f"{own}:Torch")


def test_a_file_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    import os

    table: PluginTable[object] = PluginTable(kind="lamp", group="none", builtin={})
    own = write(tmp_path / "own.py", "class Torch:\n    number = 1\n")
    assert table.make(f"{own}:Torch").number == 1  # type: ignore[attr-defined]
    write(own, "class Torch:\n    number = 2\n")
    os.utime(own, ns=(0, 0))
    assert table.make(f"{own}:Torch").number == 2  # type: ignore[attr-defined]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two entry points, as pip would leave it."""
    write(
        tmp_path / "lanterns.py",
        "class Lantern:\n    def __init__(self, *, oil: int = 1):\n        self.oil = oil\n",
    )
    info = tmp_path / "lanterns-1.0.dist-info"
    info.mkdir()
    write(info / "METADATA", "Metadata-Version: 2.1\nName: lanterns\nVersion: 1.0\n")
    write(
        info / "entry_points.txt",
        """\
        [slimsched.test_lamps]
        lantern = lanterns:Lantern
        broken = lanterns:Nothing
        lamp = lanterns:Lantern
        """,
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_installed_packages_add_names_but_take_none_away(installed: Path) -> None:
    table: PluginTable[object] = PluginTable(
        kind="lamp", group="slimsched.test_lamps", builtin={"lamp": Lamp}
    )
    assert table.names() == ("lamp", "broken", "lantern")
    assert table.make("lantern:oil=3").oil == 3  # type: ignore[attr-defined]
    assert isinstance(table.make("lamp"), Lamp)
    with pytest.raises(ConfigError, match="'broken' comes from the package lanterns and cannot be loaded"):
        table.make("broken")
