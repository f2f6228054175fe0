"""`slim serve` and `slim machine`: read and check the options; `serving/app.py` chooses and serves."""

import json
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich.console import Console

from slimsched.cli.options import AsJson, GoalText, ModelSources, need, with_options
from slimsched.core.config import ConfigError
from slimsched.serving.options import FORMATS, EngineOptions, MachineOptions, ServeOptions, set_up_logs

LOCAL_HOSTS = ("127.0.0.1", "::1", "localhost")


class ServedScenarioOptions(Struct, frozen=True, kw_only=True):
    """What to serve: a scenario, or this machine as it is."""

    scenario: Annotated[
        str | None,
        "Serve a shipped scenario instead of what this machine has: laptop or algorithm1-cpu (CPU), h200 "
        "or algorithm1 (that GPU), or one-gpu, with a --model that was profiled on this GPU.",
    ] = None
    config: Annotated[Path | None, "Serve a scenario file of your own (slim machine --out writes one)."] = (
        None
    )
    model: ModelSources = None


@with_options
def command(
    scenario: ServedScenarioOptions, machine: MachineOptions, engine: EngineOptions, served: ServeOptions
) -> None:
    """Serve models on this machine until told to stop (SIGTERM or Ctrl-C drains first).

    Without a scenario it serves on all GPUs, else on all cores. It measures what it does not know about a
    model here, and keeps that for the next start. slim machine shows what it would choose.

    Examples:

      slim serve

      slim serve --goal "accuracy>=75, p99<=60ms, min energy"

      slim serve --model my-model --model another

      slim serve --devices cuda:0,cuda:1 --precision bf16

      slim serve --devices cpu --cores 4

      slim serve --router my_router.py:MyRouter

      slim serve --http-port 9000 --token-file token.txt

      slim serve --model-repository models

      slim serve --scenario laptop --engine ray --address auto

      curl localhost:8000/v2/models/slimresnet
    """
    _ = machine.kinds  # what is not understood is refused before anything large is imported
    if engine.engine == "local":
        need("torch")  # in the server processes, where nobody would see that it is missing
    elif scenario.scenario is None and scenario.config is None:
        raise ConfigError(
            "--engine ray has other machines than this one; name what to serve with --scenario or --config"
        )
    if served.otel:
        need("opentelemetry.sdk")
    if served.model_repository is not None and engine.engine != "local":
        raise ConfigError("--model-repository works with --engine local only; leave one of them out")
    if served.shared_memory:
        _check_shared_memory(served)
    if served.log_format not in FORMATS:
        raise ConfigError(f"--log-format '{served.log_format}' is unknown; use text or json")
    set_up_logs(served.log_format)
    console = Console(stderr=True, quiet=served.log_format == "json")
    if served.host not in LOCAL_HOSTS and not (served.token or served.token_file):
        console.print(
            f"[yellow]listening at {served.host} without a token: anyone can use this server[/yellow]"
        )
    from slimsched.serving.app import choose, serve_chosen

    chosen, plan = choose(scenario.scenario, scenario.config, scenario.model or (), machine, served, console)
    if not serve_chosen(chosen, served, engine, console, plan):
        raise typer.Exit(1)


@with_options
def machine_command(
    machine: MachineOptions,
    model: ModelSources = None,
    goal: GoalText = None,
    out: Annotated[
        Path | None, "Write the scenario into this file (.toml), for --config of slim serve or simulate."
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what slim serve would choose on this machine, and what it can carry; serve nothing.

    Examples:

      slim machine

      slim machine --model my-model --cores 4 --json

      slim machine --out mine.toml
    """
    need("torch")
    from slimsched.serving.app import choose
    from slimsched.serving.measure.machine import describe, write_scenario

    served = ServeOptions(goal=goal)
    chosen, plan = choose(None, None, model or (), machine, served, Console(stderr=True))
    assert plan is not None
    if out is not None:
        write_scenario(out, plan)
    if as_json:
        print(json.dumps(msgspec.to_builtins(plan.facts)))
        return
    for line in describe(plan, chosen.scenario):
        print(line)
    if out is not None:
        print(f"written: {out}; serve it with slim serve --config {out}")


def _check_shared_memory(served: ServeOptions) -> None:
    """Refuse to let strangers name this user's shared memory."""
    if not Path("/dev/shm").is_dir():
        raise ConfigError("--shared-memory needs /dev/shm, which this system has not; leave it out")
    if served.host not in LOCAL_HOSTS and not (served.token or served.token_file):
        raise ConfigError(
            f"--shared-memory with --host {served.host} lets anyone read and write this user's shared "
            "memory; give --token-file as well, or listen on this machine only"
        )
