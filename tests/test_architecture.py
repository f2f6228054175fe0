"""The tree is the data flow: imports point one way, and the pure folders touch nothing of the world."""

import ast
from pathlib import Path

import pytest

import slimsched

ROOT = Path(slimsched.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

LAYERS = [
    {"errors"},
    {"domain"},
    {"workload"},
    {"routing", "scheduling", "jobs"},
    {"slimmable"},
    {"telemetry"},
    {"execution"},
    {"learning"},
    {"api"},
    {"dashboard"},
    {"config"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
PURE = {"domain", "routing", "scheduling", "jobs"}
WORLD = {"torch", "asyncio", "time", "os", "threading", "socket", "subprocess", "multiprocessing", "pathlib"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def part_of(module: Path) -> str:
    return module.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(module: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            found.add(node.module or "")
            if node.module == "slimsched":
                found |= {f"slimsched.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_imports_point_upwards_only(module: Path) -> None:
    here = part_of(module)
    if here == "__init__":
        return
    for name in imports(module):
        if not name.startswith("slimsched."):
            continue
        there = name.split(".")[1]
        if there == here or there not in LEVEL:
            continue
        assert LEVEL[there] < LEVEL[here], f"{here} may not import {there} ({name})"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_pure_folders_touch_nothing_of_the_world(module: Path) -> None:
    if part_of(module) in PURE:
        touched = {name.split(".")[0] for name in imports(module)} & WORLD
        assert not touched, f"{module.relative_to(ROOT)} imports {touched}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(ROOT)))
def test_files_are_short_and_named_by_a_noun(module: Path) -> None:
    assert len(module.read_text().splitlines()) <= 400
    assert module.stem not in VAGUE


def test_every_folder_has_its_place() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    assert folders <= set(LEVEL)
