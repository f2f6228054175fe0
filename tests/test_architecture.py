"""The tree is the data flow: imports point one way, and pure folders know nothing of the world."""

import ast
from functools import cache
from pathlib import Path

import pytest

import slimsched

ROOT = Path(slimsched.__file__).parent
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")

PRODUCTS = [{"core"}, {"models"}, {"serving", "jobs"}, {"dashboard"}, {"cli"}]
"""The top folders. A folder imports those before it; folders of one level never import each other."""

PARTS = {
    "serving": [
        {"options"},
        {"domain"},
        {"workload"},
        {"gateway", "scheduler"},
        {"routers"},
        {"telemetry"},
        {"scenario"},
        {"simulated"},
        {"live"},
        {"measure", "ray"},
        {"learning"},
        {"api"},
        {"app"},
    ],
    "jobs": [
        {"domain"},
        {"traces", "scheduler"},
        {"policies"},
        {"telemetry"},
        {"setting"},
        {"simulated"},
        {"slurm"},
        {"whatif"},
    ],
}
"""The same rule inside each product; a part is a folder or a module."""

PURE = (
    "serving/domain",
    "serving/gateway",
    "serving/routers",
    "serving/scheduler",
    "jobs/domain",
    "jobs/scheduler",
    "jobs/policies",
)
TORCH_FREE = (*PURE, "core", "serving/workload", "serving/telemetry", "jobs/traces", "jobs/telemetry")
"""Folders that a machine without torch can import; `models` has single pure modules, listed below."""
TORCH_FREE_MODULES = {
    f"models/{one}"
    for one in (
        "spec",
        "quality",
        "width",
        "package",
        "cache",
        "network_shape",
        "shipped",
        "slimresnet/shape",
    )
}
NETWORKS = ("slimsched.models.slimresnet", "slimsched.models.slimvit", "slimsched.models.width")
"""The shipped networks; nothing outside `models` may know them."""
WORLD = {"torch", "asyncio", "time", "os", "threading", "socket", "subprocess", "multiprocessing", "pathlib"}
VAGUE = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}


def is_within(name: str, parts: tuple[str, ...]) -> bool:
    """Whether a module is one of these parts, or in one of them."""
    return any(name == part or name.startswith(f"{part}/") for part in parts)


def name_of(module: Path) -> str:
    return module.relative_to(ROOT).with_suffix("").as_posix()


def levels(order: list[set[str]]) -> dict[str, int]:
    return {name: level for level, names in enumerate(order) for name in names}


@cache
def imports(module: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def check_order(module: Path, here: str, there: str, order: list[set[str]], name: str) -> None:
    level = levels(order)
    if there != here and there in level and here in level:
        assert level[there] < level[here], f"{name_of(module)} may not import {name}"


COMPOSITION_ROOT = "serving/app"
"""Puts a whole server together, its dashboard too; nothing but the command line and users import it."""


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_imports_point_one_way(module: Path) -> None:
    product, *rest = name_of(module).split("/")
    for name in imports(module):
        first, *path = name.split(".")
        if first != "slimsched" or not path:
            continue
        if name_of(module) == COMPOSITION_ROOT and path[0] == "dashboard":
            continue
        check_order(module, product, path[0], PRODUCTS, name)
        if path[0] == product in PARTS and len(path) > 1:
            check_order(module, rest[0], path[1], PARTS[product], name)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_pure_modules_touch_nothing_of_the_world(module: Path) -> None:
    name = name_of(module)
    roots = {imported.split(".")[0] for imported in imports(module)}
    if is_within(name, PURE):
        assert not roots & WORLD, f"{name} imports {roots & WORLD}"
    if name in TORCH_FREE_MODULES or is_within(name, TORCH_FREE):
        assert "torch" not in roots


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_no_model_is_special_outside_models(module: Path) -> None:
    if not name_of(module).startswith("models/"):
        special = {name for name in imports(module) if name.startswith(NETWORKS)}
        assert not special, f"{name_of(module)} imports {special}; take it from models/shipped_models"


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_modules_are_named_by_a_noun(module: Path) -> None:
    assert module.stem not in VAGUE


def test_every_part_has_its_place() -> None:
    def parts(root: Path) -> set[str]:
        folders = {path.name for path in root.iterdir() if (path / "__init__.py").exists()}
        return folders | {path.stem for path in root.glob("*.py")} - {"__init__"}

    assert parts(ROOT) == set(levels(PRODUCTS))
    for product, order in PARTS.items():
        assert parts(ROOT / product) == set(levels(order))


def test_tests_mirror_the_tree() -> None:
    tests = Path(__file__).parent
    others = {"benchmarks", "deploy", "docs", "examples", "hostile"}
    for folder in {path.parent for path in tests.rglob("test_*.py")} - {tests}:
        where = folder.relative_to(tests)
        assert where.parts[0] in others or (ROOT / where).is_dir(), f"tests/{where} mirrors no folder"


OUTSIDE = {"benchmarks", "deploy", "docs", "examples", "hostile"}
"""Folders of tests of something else than one part of the package."""


def test_the_tests_mirror_the_package() -> None:
    tests = Path(__file__).parent
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    parts = {one for one in folders if one.parts and one.parts[0] not in OUTSIDE}
    assert all((ROOT / one).is_dir() for one in parts), [
        str(one) for one in parts if not (ROOT / one).is_dir()
    ]
