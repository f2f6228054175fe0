"""Structured logs."""

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from served import CONFIG
from slimsched.serving.api.client.client import Client
from slimsched.serving.options import JsonLines


def test_a_record_is_one_object_with_its_own_fields() -> None:
    record = logging.makeLogRecord(
        {"name": "slim.x", "levelname": "INFO", "msg": "took %d ms", "args": (3,), "server": "one"}
    )
    line = json.loads(JsonLines().format(record))
    assert (line["level"], line["logger"], line["message"], line["server"]) == (
        "info",
        "slim.x",
        "took 3 ms",
        "one",
    )
    assert line["time"].endswith("+00:00")


def test_every_line_of_a_server_is_json(tmp_path: Path) -> None:
    config = tmp_path / "two.toml"
    config.write_text(CONFIG)
    command = [
        sys.executable,
        "-c",
        "from slimsched.cli.app import main; main()",
        "serve",
        "--config",
        str(config),
    ]
    command += ["--http-port", "0", "--grpc-port", "0", "--log-format", "json", "--access-log"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stderr is not None
        lines = []
        for text in process.stderr:
            lines.append(json.loads(text))
            if lines[-1]["message"].startswith("ready: "):
                url = lines[-1]["message"].split()[1].partition("/v2")[0]
                with Client(url, model="slimresnet") as client:
                    client.classify(np.zeros((3, 32, 32), np.uint8))
                process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert {line.get("server") for line in lines if line["logger"] == "slim.cluster"} == {"one", "two"}
    access = [line for line in lines if line["logger"] == "slim.access"]
    codes = [(line["kind"], line["code"]) for line in access]
    assert codes == [("other", "200"), ("infer", "200")], "the client asks for the model's tensors first"
    assert lines[-1]["message"] == "draining; a second signal ends at once"
