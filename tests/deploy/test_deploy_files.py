"""The files of deploy/: each is read as the program it is for reads it, and agrees with the rest."""

import json
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from doc_commands import ROOT
from served import Served
from slimsched.cli.app import command_line

DEPLOY = ROOT / "deploy"
COMPOSE_SCHEMA = os.environ.get("SLIM_COMPOSE_SCHEMA", "")
CRDS = os.environ.get("SLIM_KSERVE_CRD", "")


def serve_options() -> set[str]:
    """Return every option of `slim serve`."""
    command: Any = command_line()
    return {name for one in command.commands["serve"].params for name in (*one.opts, *one.secondary_opts)}


def commands() -> dict[str, list[str]]:
    """Return the words that each file starts the program with."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    runtime, _ = yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text())
    unit = re.search(
        r"^ExecStart=/opt/slim/bin/slim (.*)$", (DEPLOY / "slim-serve.service").read_text(), re.M
    )
    image = re.search(r"^CMD \[(.*)\]$", (DEPLOY / "Containerfile").read_text(), re.M)
    assert unit is not None
    assert image is not None
    return {
        "compose.yaml": compose["services"]["server"]["command"],
        "kserve.yaml": runtime["spec"]["containers"][0]["args"],
        "slim-serve.service": unit[1].split(),
        "Containerfile": [word.strip(' "') for word in image[1].split(",")],
    }


@pytest.mark.parametrize("name", ["compose.yaml", "kserve.yaml", "slim-serve.service", "Containerfile"])
def test_every_file_starts_the_server_with_options_that_exist(name: str) -> None:
    words = commands()[name]
    assert words[0] == "serve"
    assert {word for word in words if word.startswith("--")} <= serve_options()


def test_compose_mounts_files_that_are_there() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounted = [volume.split(":")[0] for one in services.values() for volume in one.get("volumes", [])]
    assert [path for path in mounted if path.startswith(".") and not (DEPLOY / path).exists()] == []
    build = services["server"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()


@pytest.mark.skipif(not COMPOSE_SCHEMA, reason="SLIM_COMPOSE_SCHEMA does not name a compose-spec.json")
def test_compose_fits_the_schema_of_the_compose_specification() -> None:
    from jsonschema import Draft7Validator

    validator = Draft7Validator(json.loads(Path(COMPOSE_SCHEMA).read_text()))
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert [error.message for error in validator.iter_errors(compose)] == []
    compose["services"]["server"]["portz"] = []
    assert not validator.is_valid(compose), "the schema refuses what it does not know"


def test_the_probes_of_the_runtime_are_served(served: Served) -> None:
    runtime, _ = yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text())
    (container,) = runtime["spec"]["containers"]
    for name in ("readinessProbe", "livenessProbe"):
        path = container[name]["httpGet"]["path"]
        with urllib.request.urlopen(f"http://{served.http}{path}", timeout=30) as answer:
            assert answer.status == 200


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze: install systemd")
    unit = tmp_path / "slim-serve.service"
    text = (DEPLOY / "slim-serve.service").read_text()
    unit.write_text(text.replace("/opt/slim/bin/slim", "/bin/true"))  # the program is not installed there
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60)
    assert [line for line in done.stderr.splitlines() if "slim-serve" in line] == []


@pytest.mark.skipif(not CRDS, reason="SLIM_KSERVE_CRD does not name the folder with KServe's CRDs")
def test_the_runtime_fits_the_schemas_of_kserve() -> None:
    from jsonschema import Draft202012Validator

    kinds = {"ServingRuntime": "servingruntimes", "InferenceService": "inferenceservices"}
    for document in yaml.safe_load_all((DEPLOY / "kserve.yaml").read_text()):
        crd = yaml.safe_load((Path(CRDS) / f"serving.kserve.io_{kinds[document['kind']]}.yaml").read_text())
        version = document["apiVersion"].split("/")[1]
        schema = next(one["schema"] for one in crd["spec"]["versions"] if one["name"] == version)
        strict = closed(schema["openAPIV3Schema"])
        assert [error.message for error in Draft202012Validator(strict).iter_errors(document)] == []


def closed(schema: Any) -> Any:
    """Return the schema with unknown keys refused, as a cluster prunes them without a word."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {name: closed(one) for name, one in schema.items() if name != "pattern"}
    if (
        "properties" in inner
        and "additionalProperties" not in inner
        and isinstance(inner["properties"], dict)
    ):
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields")
        metadata = inner["properties"] and "apiVersion" in inner["properties"]
        if metadata:
            inner["properties"]["metadata"] = {"type": "object"}
        if not open_ended:
            inner["additionalProperties"] = False
    return inner
