"""The public API is what `docs/python.md` says: every name is there, examples run, and it loads lazily."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module, resources
from pathlib import Path
from typing import Any

import pytest

import slimsched
from command_line import CliRunner
from doc_commands import ROOT
from served import Served, serve

PAGE = ROOT / "docs" / "python.md"
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^>]*) -->\n)?^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
NEEDS_A_SERVER = "needs a server"
HEAVY = {"torch", "numpy", "scipy", "msgspec", "typer", "asyncio", "grpc", "http", "multiprocessing", "ray"}


def blocks() -> list[tuple[str, str]]:
    """The page's Python blocks: what the comment before each says, and its code."""
    return [(match["mark"] or "", match["code"]) for match in BLOCK.finditer(PAGE.read_text())]


@pytest.mark.parametrize("name", slimsched.__all__)
def test_every_public_name_can_be_imported_and_is_explained(name: str) -> None:
    assert getattr(slimsched, name) is not None
    explained = re.findall(r"^\| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    names = {word for cell in explained for word in re.findall(r"`([A-Za-z_]+)", cell)}
    assert name in names or name == "__version__"
    assert f"`{name}" in PAGE.read_text()


def test_the_table_explains_nothing_that_is_not_public() -> None:
    rows = re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    names = {name for row in rows for name in re.findall(r"`([A-Za-z_]+)", row)}
    assert names <= set(slimsched.__all__)


def test_lists_of_names_agree() -> None:
    assert {*slimsched._HOMES, "__version__"} == set(slimsched.__all__)
    assert dir(slimsched) == sorted(slimsched.__all__)
    assert not hasattr(slimsched, "no_such_name")


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for mark, code in blocks():
        if not mark:
            exec(compile(code, "docs/python.md", "exec"), names)
            if "class SmallestFirst" in code:
                Path("my_policy.py").write_text(code)
    jobs = names["prepare_jobs"](names["trace"], names["setting"], seed=0)
    own, *_ = names["simulate_jobs"]("my_policy.py:SmallestFirst", jobs, names["setting"], seed=0)
    assert own.policy == "my_policy.py:SmallestFirst"


def test_the_examples_that_need_a_server_run(tmp_path: Path) -> None:
    server: Served = serve(tmp_path)
    try:
        for mark, code in blocks():
            if mark == NEEDS_A_SERVER:
                exec(compile(code.replace("127.0.0.1:8000", server.http), "docs/python.md", "exec"), {})
    finally:
        assert server.stop() == 0


def test_every_mark_is_understood() -> None:
    marks = {mark for mark, _ in blocks()}
    assert marks == {"", NEEDS_A_SERVER, "not run: it serves until it is stopped"}


def test_the_model_of_the_readme_passes_the_check(tmp_path: Path) -> None:
    blocks = dict(
        re.findall(
            r"^```(python|toml)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE
        )
    )
    (tmp_path / "model.py").write_text(blocks["python"])
    (tmp_path / "model.toml").write_text(blocks["toml"])
    done = CliRunner().invoke(["model", "check", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "ok: 2 plans run" in done.output


def imported(code: str) -> set[str]:
    """Modules that code imports from."""
    nodes = list(ast.walk(ast.parse(code)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}


def python_of(path: Path) -> str:
    """The code of a module, or of a notebook's cells."""
    if path.suffix == ".py":
        return path.read_text()
    cells = json.loads(path.read_text())["cells"]
    lines = [
        line for cell in cells if cell["cell_type"] == "code" for line in "".join(cell["source"]).split("\n")
    ]
    return "\n".join(line for line in lines if not line.startswith("%"))


EXAMPLES = sorted(path for kind in ("*.py", "*.ipynb") for path in (ROOT / "examples").rglob(kind))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_examples_import_from_the_top_level_only(path: Path) -> None:
    assert not {name for name in imported(python_of(path)) if name.startswith("slimsched.")}


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, slimsched; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not HEAVY & loaded
    assert {name for name in loaded if name.startswith("slimsched")} == {"slimsched"}


@pytest.mark.parametrize(
    "name", ["Goal", "parse_goal", "Job", "ModelSpec", "SlimError", "simulate", "Router"]
)
def test_what_needs_no_torch_loads_none(name: str) -> None:
    code = f"import sys; from slimsched import {name}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_types_are_shipped() -> None:
    assert (resources.files("slimsched") / "py.typed").is_file()
    build = (ROOT / "pyproject.toml").read_text()
    assert 'packages = ["src/slimsched"]' in build  # a wheel holds every file of the folder


def test_type_checkers_see_the_names_that_are_loaded_lazily() -> None:
    tree = ast.parse(Path(slimsched.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    modules, seen = {}, set()
    for node in block.body:
        if isinstance(node, ast.Assign):  # a name that is another one in its module
            name, (module, _, there) = ast.unparse(node.targets[0]), ast.unparse(node.value).partition(".")
            assert getattr(slimsched, name) is getattr(modules[module], there)
            seen.add(name)
            continue
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            if alias.asname is None:
                modules[alias.name] = import_module(f"{node.module}.{alias.name}")
            else:
                assert getattr(slimsched, alias.asname) is getattr(
                    import_module(node.module or ""), alias.name
                )
                seen.add(alias.asname)
    assert seen == set(slimsched.__all__)
