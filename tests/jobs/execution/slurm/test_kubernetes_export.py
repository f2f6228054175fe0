"""Manifests of a placed gang. They are checked for shape only: no Kubernetes was at hand."""

import json

import pytest
from typer.testing import CliRunner

from slimsched.cli.app import app
from slimsched.jobs.domain.job import Job
from slimsched.jobs.execution.kubernetes_export import UNTESTED, manifests
from slimsched.kernel.errors import ConfigError


def test_each_machine_gets_one_pod_with_its_share_and_says_it_is_untested() -> None:
    job = Job(id="bert-1", arrival_s=0.0, gpus=20)
    placement = (("a", 8), ("b", 8), ("c", 4))
    items = manifests(job, placement, image="my/bert", command=["train"])["items"]
    shares = [
        (
            item["spec"]["completions"],
            item["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"],
        )
        for item in items
        if item["kind"] == "Job"
    ]
    assert shares == [(2, {"nvidia.com/gpu": 8}), (1, {"nvidia.com/gpu": 4})]
    assert all(item["metadata"]["annotations"]["slim/status"] == UNTESTED for item in items)


def test_the_command_line_writes_json() -> None:
    command = ["jobs", "export-kubernetes", "--place=a=8,b=8", "--image=my/bert", "bert-1", "train", "--lr=1"]
    done = CliRunner().invoke(app, command)
    assert [item["kind"] for item in json.loads(done.stdout)["items"]] == ["Service", "Job"]


def test_names_and_placements_that_cannot_be_are_refused() -> None:
    with pytest.raises(ConfigError, match="no Kubernetes name"):
        manifests(Job(id="Bert_1!", arrival_s=0.0, gpus=8), (("a", 8),), image="i", command=["c"])
    with pytest.raises(ConfigError, match="has no placement"):
        manifests(Job(id="b", arrival_s=0.0, gpus=8), (), image="i", command=["c"])
    error = (
        CliRunner().invoke(app, ["jobs", "export-kubernetes", "--place=a", "--image=i", "b", "c"]).exception
    )
    assert isinstance(error, ConfigError)
