"""Figures of the source tree, as the rules in test_house.py look at them; run it to print them."""

import ast
import contextlib
import io
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import slimsched

ROOT = Path(slimsched.__file__).parent
SMALL_LINES = 150
"""A shorter module with one importer, in the same folder, is part of its importer."""


class House:
    """All modules of the package, parsed once; generated ones are left out."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._files = sorted(path for path in root.rglob("*.py") if not path.name.endswith("_pb2.py"))
        self._trees = {self.name_of(path): ast.parse(path.read_text()) for path in self._files}
        self.lines = {self.name_of(path): len(path.read_text().splitlines()) for path in self._files}

    def name_of(self, path: Path) -> str:
        """Return a module's name below the package, such as models/spec."""
        return path.relative_to(self._root).with_suffix("").as_posix()

    @cached_property
    def modules(self) -> list[str]:
        """All modules but the __init__ of each folder."""
        return [name for name in self._trees if Path(name).name != "__init__"]

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports, anywhere in it and for type checkers too."""
        return {name: set(self._imported(name)) - {name} for name in self.modules}

    @cached_property
    def importers(self) -> dict[str, set[str]]:
        """The modules that import each module."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            for one in imported:
                found[one].add(name)
        return found

    def folders(self) -> Counter[str]:
        """How many modules each folder has."""
        return Counter(Path(name).parent.as_posix() for name in self.modules)

    def satellites(self) -> list[str]:
        """Small modules with one importer, in the same folder."""

        def is_one(name: str) -> bool:
            importers = self.importers[name]
            return (
                self.lines[name] < SMALL_LINES
                and len(importers) == 1
                and Path(next(iter(importers))).parent == Path(name).parent
            )

        return [name for name in self.modules if is_one(name)]

    def class_names(self) -> dict[str, list[str]]:
        """The public class names that more than one module defines, and where."""
        homes: dict[str, list[str]] = defaultdict(list)
        for name in self.modules:
            for node in self._trees[name].body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes[node.name].append(name)
        return {name: where for name, where in homes.items() if len(where) > 1}

    def functions(self) -> dict[str, int]:
        """The length of every function and method."""
        return dict(self._lengths(ast.FunctionDef, ast.AsyncFunctionDef))

    def classes(self) -> dict[str, int]:
        """The length of every class."""
        return dict(self._lengths(ast.ClassDef))

    def cycles(self) -> list[list[str]]:
        """Groups of modules that import each other, imports for type checkers included."""
        reached = {name: self._reachable(name) for name in self.modules}
        groups = {
            tuple(sorted(one for one in reached[name] if name in reached[one]))
            for name in self.modules
            if name in reached[name]
        }
        return sorted(list(group) for group in groups)

    def figures(self) -> dict[str, int]:
        """All figures that have a ceiling, but those for which requests must run."""
        named = {name: self.lines[name] for name in self.modules}
        return {
            "modules": len(self.modules),
            "lines of Python": sum(self.lines.values()),
            "lines of C++": sum(len(path.read_text().splitlines()) for path in self._root.rglob("*.[ch]pp")),
            "lines of the longest module": max(named.values()),
            "lines of the longest function": max(self.functions().values()),
            "lines of the longest class": max(self.classes().values()),
            "modules in the largest folder": max(self.folders().values()),
            "class names that stand for several things": len(self.class_names()),
            "groups of modules that import each other": len(self.cycles()),
            "small modules that only one neighbour imports": len(self.satellites()),
        }

    def _reachable(self, name: str) -> set[str]:
        found: set[str] = set()
        waiting = [*self.imports[name]]
        while waiting:
            if (one := waiting.pop()) not in found:
                found.add(one)
                waiting += self.imports[one]
        return found

    def _imported(self, name: str) -> Iterator[str]:
        for node in ast.walk(self._trees[name]):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("slimsched"):
                yield from self._known(
                    str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)
                )
            elif isinstance(node, ast.Import):
                yield from self._known(*(alias.name for alias in node.names))

    def _known(self, *imported: str) -> Iterator[str]:
        for one in imported:
            name = one.removeprefix("slimsched.").replace(".", "/")
            if name in self._trees and Path(name).name != "__init__":
                yield name

    def _lengths(self, *kinds: type[ast.AST]) -> Iterator[tuple[str, int]]:
        for name in self.modules:
            for node in ast.walk(self._trees[name]):
                if isinstance(node, kinds):
                    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                    yield f"{name}:{node.lineno}: {node.name}", (node.end_lineno or 0) - node.lineno + 1


def modules_of_a_simulated_request() -> set[str]:
    """The modules whose code runs in `slim simulate --router goal` once all is imported."""
    from slimsched.cli.app import run

    seen: set[str] = set()

    def note(frame: object, event: str, argument: object) -> None:
        if event == "call":
            seen.add(frame.f_code.co_filename)  # type: ignore[attr-defined]

    def simulate(seconds: str) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            run(["simulate", "--scenario", "paper", "--router", "goal", "--seconds", seconds, "--json"])

    simulate("0.05")
    sys.setprofile(note)
    try:
        simulate("0.2")
    finally:
        sys.setprofile(None)
    return ours(seen)


def ours(files: set[str]) -> set[str]:
    """Return which of these source files are modules of the package, by name."""
    paths = {Path(name) for name in files}
    return {path.relative_to(ROOT).with_suffix("").as_posix() for path in paths if path.is_relative_to(ROOT)}


if __name__ == "__main__":
    found = House().figures()
    found["modules that a simulated request enters"] = len(modules_of_a_simulated_request())
    print(json.dumps(found, indent=1))
