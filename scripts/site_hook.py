"""Makes the site of docs/ and the pages beside it: benchmarks, examples, contributing and changelog.

Pages are written for GitHub. Three things differ there, and are changed while the site is built: links may
leave docs/, a list or table may follow a line of text directly, and a folder shows its files by itself.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "benchmarks", "examples", "deploy")
KINDS = {".md", ".png", ".jpg", ".py", ".toml", ".ipynb", ".yaml", ".yml", ".service", ""}
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]*)((?:#[^)\s]*)?)\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
ABRUPT = re.compile(r"^(?![ |*\-\d>]|$)(.*\S.*)\n(?=\||[*-] |1\. )", re.MULTILINE)
"""A line of text right before a list or a table."""


def on_config(config: Any) -> Any:
    """Replace entries of the navigation that have a star by the pages that fit."""
    config.nav = [_expanded(entry) for entry in config.nav]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages beside docs/, and a list of all decisions."""
    for name in BESIDE:
        path = ROOT / name
        for one in [path] if path.is_file() else sorted(path.rglob("*")):
            if one.is_file() and one.suffix in KINDS and "__pycache__" not in one.parts:
                source = one.relative_to(ROOT).as_posix()
                files.append(File.generated(config, source, abs_src_path=str(one)))
    decisions = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
    lines = [f"* [{one.read_text().splitlines()[0].removeprefix('# ')}]({one.name})" for one in decisions]
    text = "\n".join(["# Decisions", "", "Context, decision, consequences, what was measured.", "", *lines])
    files.append(File.generated(config, "decisions/index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Make the page fit the site."""
    source = page.file.src_uri
    parts, at = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [_fitted(markdown[at : fence.start()], source, files), fence[0]]
        at = fence.end()
    return "".join([*parts, _fitted(markdown[at:], source, files)])


def _fitted(text: str, source: str, files: Any) -> str:
    text = LINK.sub(lambda link: f"]({_target(link[1], source, files)}{link[2]})", text)
    return ABRUPT.sub(r"\1\n\n", text)


def _target(target: str, source: str, files: Any) -> str:
    """Return where a link of the repository leads on the site."""
    beside = source.split("/")[0] in BESIDE
    folder = PurePosixPath(source if beside else f"docs/{source}").parent
    path = normpath(str(folder / target))
    path = path.removeprefix("docs/") if path.startswith("docs/") else path
    path = {"README.md": "index.md", "decisions": "decisions/index.md"}.get(path, path)
    if files.get_file_from_path(path) is None and files.get_file_from_path(f"{path}/README.md"):
        path = f"{path}/README.md"
    return relpath(path, str(PurePosixPath(source).parent)) if target else ""


def _expanded(entry: Any) -> Any:
    if isinstance(entry, dict):
        return {name: _list(one) if isinstance(one, list) else one for name, one in entry.items()}
    return entry


def _list(entries: list[Any]) -> list[Any]:
    pages: list[Any] = []
    for entry in entries:
        if isinstance(entry, str) and "*" in entry:
            pages += [str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs").glob(entry))]
        else:
            pages.append(entry)
    return pages
