"""Tidies the help of all commands: what to write after an option in words, and paragraphs without breaks."""

import re
from typing import Any

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
