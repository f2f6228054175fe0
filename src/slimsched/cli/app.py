"""`slim`: assembles the sub-commands and turns errors into one line and an exit code.

Help is tidied for all commands at once: what to write after an option in words, paragraphs without breaks.
"""

import os
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any

import typer

# -- Tidies the help of all commands: what to write after an option in words, and paragraphs without breaks.

FLAG = ""
WORDS = {
    "rate": "PER_SECOND",
    "seconds": "SECONDS",
    "warmup": "SECONDS",
    "seed": "N",
    "seeds": "N",
    "goal": "GOAL",
    "router": "ROUTER",
    "routers": "ROUTER,…",
    "policy": "POLICY",
    "policies": "POLICY,…",
    "scenario": "NAME",
    "cluster": "NAME",
    "url": "URL",
    "token": "TOKEN",
    "plan": "PLAN",
    "batches": "N,…",
    "power": "WATTS",
    "log_limit": "MEGABYTES",
    "mps": "PERCENT",
    "min_accuracy": "PERCENT",
    "kill": "SERVER@TIME",
    "hang": "SERVER@TIME",
    "restore": "SERVER@TIME",
    "leave": "SERVER@TIME",
    "slow": "SERVER@TIMExFACTOR",
    "slow_link": "SERVER@TIMExFACTOR",
}
"""Option → what to write after it, where its name or its type does not say it."""

ENDINGS = {"_s": "SECONDS", "_ms": "MILLISECONDS", "_mj": "MILLIJOULES", "_w": "WATTS", "port": "PORT"}
TYPES = {"integer": "N", "int": "N", "float": "NUMBER", "path": "FILE"}


def tidy(command: Any) -> Any:
    """Tidy a command and all commands below it, and return it."""
    command.help = unwrap(command.help or "")
    for parameter in command.params:
        if getattr(parameter, "help", None):
            parameter.help = parameter.help.replace("\n", " ")
        if parameter.param_type_name == "option" and parameter.metavar is None:
            parameter.metavar = word_for(parameter)
        elif parameter.param_type_name == "argument" and parameter.metavar is None:
            parameter.metavar = parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
        if parameter.param_type_name == "argument":
            parameter.display_type_rich = lambda ctx: None  # its name says what it is
    _name_no_type_of_help(command)
    for one in getattr(command, "commands", {}).values():
        tidy(one)
    return command


def _name_no_type_of_help(command: Any) -> None:
    """Let --help be shown as other switches are; it is made only when it is asked for."""
    params_of = command.get_params

    def get_params(ctx: Any) -> list[Any]:
        params: list[Any] = params_of(ctx)
        for parameter in params:
            if parameter.name == "help" and parameter.metavar is None:
                parameter.metavar = FLAG
                parameter.default = False  # of None, Typer would import pydantic to make a bool
        return params

    command.get_params = get_params


def unwrap(text: str) -> str:
    """Join the lines of each paragraph; a terminal breaks them where it ends. Examples stay as they are."""
    paragraphs = [
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.split())
        for paragraph in re.split(r"\n\s*\n", re.sub(r"\n {4}", "\n", text.strip()))
    ]
    return "\n\n".join(paragraphs)


def word_for(option: Any) -> str:
    """Say in a word what an option takes; nothing for a switch."""
    if getattr(option, "is_flag", False):
        return FLAG
    kind, choices = _type_of(option)
    if choices:
        return "|".join(choices)
    if option.name in WORDS:
        return WORDS[option.name]
    if kind == "path":
        about = (option.help or "").lower()
        is_folder = "folder" in about and about.find("folder") < (about + "file").find("file")
        return "FOLDER" if is_folder else "FILE"
    for ending, word in ENDINGS.items():
        if option.name.endswith(ending):
            return word
    return TYPES.get(kind, "TEXT")


def _type_of(option: Any) -> tuple[str, list[str]]:
    """Return the name of an option's type, and its choices; newer versions of Typer have no click types."""
    if (described := getattr(option, "type_descriptor", None)) is not None:
        name = option.bare_type().removeprefix("list[").removesuffix("]").lower()
        return name, [str(one) for one in (described.choices or ())] if described.is_choice else []
    return str(option.type.name), [str(one) for one in getattr(option.type, "choices", ())]


# -- The commands. A module is loaded when its command is used: help and mistakes are answered at once.

HOMES = {
    "demo": "serving.demo:command",
    "simulate": "serving.simulate:simulate_command",
    "compare": "serving.simulate:compare_command",
    "bound": "serving.simulate:bound_command",
    "explain": "runs:explain_command",
    "replay": "runs:replay_command",
    "report": "runs:report_command",
    "serve": "serving.serve:command",
    "machine": "serving.serve:machine_command",
    "client": "serving.client:client_command",
    "load": "serving.client:load_command",
    "profile": "serving.measure:profile_command",
    "validate": "serving.measure:validate_command",
    "servers": "serving.servers:app",
    "router": "serving.router:app",
    "model": "models.model:app",
    "data": "models.data:app",
    "jobs": "jobs.app:app",
}
"""Command or group of commands → module and name."""

LINES = {
    "demo": "Start servers of unequal speed on this machine and send them more than random routing can hold.",
    "simulate": "Simulate one router on a scenario; the router is sed, or goal where a goal is given.",
    "compare": "Compare routers on a scenario; the classical routers and goal if none are named.",
    "bound": "Print the fluid bounds on accuracy, and how much the cluster can carry at each choice.",
    "explain": "Say why a request went where it went: each decision, its costs, the runner-up, what binds.",
    "replay": "Replay the event logs of a run into fresh machines and compare every decision.",
    "report": "Write the report of a run: one self-contained HTML file, and its pictures as PNG beside it.",
    "serve": "Serve models on this machine until told to stop (SIGTERM or Ctrl-C drains first).",
    "machine": "Show what slim serve would choose on this machine, and what it can carry; serve nothing.",
    "client": "Classify pictures with a running `slim serve`.",
    "load": "Send each request when it is due, even if earlier ones are unanswered, and report the answers.",
    "profile": "Measure latency, energy and memory of every step of a model on this device.",
    "validate": "Run the same arrivals live on this machine and simulated, and print the simulator's error.",
    "servers": "Servers on Ray: list them, let them join and leave.",
    "router": "Train and list routers.",
    "model": "Make, check, train, evaluate and look at models.",
    "data": "Fetch and check data sets.",
    "jobs": "Place training jobs on a cluster.",
}
"""Command → its line in the help of `slim`: that of a group, or the first paragraph of a command's help."""


def _print_version(asked: bool) -> None:
    if asked:
        from slimsched.core.version import __version__

        print(f"slim-scheduler {__version__}")
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Serve elastic models on unequal devices; place training jobs where the network lets them run."""


def assembled(used: Collection[str] = HOMES, *, completes: bool = True) -> typer.Typer:
    """Put the command line together; of commands that are not used, only names and lines."""
    app = typer.Typer(
        name="slim", no_args_is_help=True, add_completion=completes, pretty_exceptions_enable=False
    )
    app.callback()(root)
    for name, home in HOMES.items():
        module, _, there = home.partition(":")
        loaded = getattr(import_module(f"slimsched.cli.{module}"), there) if name in used else typer.Typer()
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name, help=LINES[name])
        else:
            app.command(name)(loaded)
    return app


def command_line(used: Collection[str] = HOMES, *, completes: bool = True) -> Any:
    """Return the command line with its help tidied."""
    return tidy(typer.main.get_command(assembled(used, completes=completes)))


def main() -> None:
    """Run the command line."""
    sys.exit(run(sys.argv[1:]))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(
            OSError, ValueError
        ):  # else Python tries again when it ends, and has an exit code for it
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code; an error becomes one line, a bug keeps its traceback."""
    try:
        try:
            typed = os.environ.get("_TYPER_COMPLETE_ARGS") or os.environ.get("COMP_WORDS") or ""
            named = [
                word for word in words or typed.split() if word in HOMES
            ]  # a shell completes what is typed
            is_own = not words or words[0].startswith("-")  # other commands need not know of completion
            command_line(named[:1], completes=is_own)(list(words), prog_name="slim")
        finally:
            _flush()  # a full disk behind it shows here, not when Python ends
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from slimsched.cli.options import line_of

        known = line_of(error, words[0] if words else "")
        if known is None:
            raise
        print(f"slim: {known[0]}", file=sys.stderr)
        return known[1]
    return 0
