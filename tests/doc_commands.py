"""The commands that README and docs tell people to type: found in blocks and between backticks."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("slim", "make", "python", "python3", "curl", "open", "scripts/")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^    .*\S.*\n?)+", re.MULTILINE)
_INLINE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True)
class Command:
    """One command as it is written; `typed` in a block of its own, `given` what a here-document feeds it."""

    page: str
    text: str
    typed: bool
    given: str = ""

    @property
    def words(self) -> list[str]:
        """The command as the shell splits it, without our own bin folder and without redirections."""
        words = shlex.split(self.text, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
            del words[0]  # a setting for this one command
        if "&&" in words:
            words = words[: words.index("&&")]
        if words and words[-1] == "&":
            del words[-1]
        if ">" in words:
            del words[words.index(">") : words.index(">") + 2]
        return [words[0].removeprefix(".venv/bin/"), *words[1:]] if words else []

    @property
    def is_a_name(self) -> bool:
        """Whether it only names a command, as in `slim serve`, rather than telling to type something."""
        return not self.typed and not any(word.startswith("-") for word in self.words)

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


def commands(page: Path) -> list[Command]:
    """All commands of a page, in order, each once."""
    text, name = page.read_text(), str(page.relative_to(ROOT))
    blocks = [match[2] for match in _BLOCK.finditer(text) if match[1] in ("", "sh", "bash", "console")]
    rest = _BLOCK.sub("", text)
    indented = [re.sub(r"^    ", "", match[0], flags=re.MULTILINE) for match in _INDENTED.finditer(rest)]
    typed = [
        Command(name, line, True, given) for block in (*blocks, *indented) for line, given in _lines(block)
    ]
    named = [Command(name, match[1], False) for match in _INLINE.finditer(_INDENTED.sub("", rest))]
    return [one for one in dict.fromkeys((*typed, *named)) if _is_command(one.text)]


def _lines(block: str) -> Iterator[tuple[str, str]]:
    """Whole commands of a block: continued lines joined, here-documents apart."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        marker = re.search(r"<<'?(\w+)'?\s*$", line)
        if marker is None:
            inner = re.search(r"\$\((slim [^)]*)\)", line)
            yield inner[1] if inner else line.strip(), ""
            continue
        given = []
        for inner in lines:
            if inner == marker[1]:
                break
            given.append(inner)
        yield line[: marker.start()].strip(), "\n".join(given)


def _is_command(text: str) -> bool:
    first = re.sub(r"^([A-Z_]+=\S* )+", "", text).removeprefix(".venv/bin/")
    return any(first.startswith(program if program.endswith("/") else f"{program} ") for program in PROGRAMS)
