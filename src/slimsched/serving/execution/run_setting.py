"""The setting of a serving run: stored in its log's header, and enough to make its state machines again."""

from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from slimsched import __version__
from slimsched.core.config import DataError, Identity, Seed
from slimsched.core.log import Header
from slimsched.serving.domain.model import ModelOutline
from slimsched.serving.execution.scenario import Scenario
from slimsched.serving.execution.scenario_file import CONFIGS, build_scenario


class RunSetting(Struct, frozen=True, kw_only=True):
    """The scenario file as it was read, the router and the seed.

    `beside` is the folder with the scenario's own devices and profiles; empty for a shipped scenario.
    `for_clients` says whether the run used `Scenario.for_clients`. `first_id` is where the gateway began to
    number its blocks. `models` names the choices, so that the log can be read without the models.
    """

    scenario: dict[str, Any]
    router: str
    seed: Seed = 0
    beside: str = ""
    for_clients: bool = False
    first_id: Identity = 0
    models: tuple[ModelOutline, ...] = ()

    def header(self) -> Header:
        """Return the header of a log of this run."""
        return Header(slim=__version__, kind="serving", setting=msgspec.to_builtins(self))

    def build(self) -> Scenario:
        """Read the scenario again, as it was run."""
        beside = Path(self.beside) if self.beside else CONFIGS
        scenario = build_scenario(self.scenario, "the log's scenario", beside)
        return scenario.for_clients() if self.for_clients else scenario


def read_setting(header: Header) -> RunSetting:
    """Read the setting of a serving run from its log's header."""
    try:
        return msgspec.convert(header.setting, RunSetting)
    except msgspec.ValidationError as error:
        raise DataError(
            f"the log's header (written by slim {header.slim}) holds no setting of a serving run: {error}; "
            "replay it with the version that wrote it"
        ) from None
