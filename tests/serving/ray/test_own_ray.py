"""A Ray that is started for a run is for this machine only."""

import os
import subprocess
import sys

CODE = """
from slimsched.serving.ray.engine import connect
connect(None, "")
import ray
print(ray.util.get_node_ip_address(), *[node["NodeManagerAddress"] for node in ray.nodes()])
"""


def test_a_ray_of_our_own_listens_at_the_loopback_address() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, env=environment, check=True, timeout=120
    )
    assert done.stdout.split() == ["127.0.0.1", "127.0.0.1"]
