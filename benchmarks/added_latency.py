"""What gateway, sockets and client add to the time that a model takes, with a client that is not Python.

    python benchmarks/added_latency.py [--config FILE] [--rate 200] [--images 1] [--plan 1.0] [--fronts 0]

wrk sends requests at random times over a few connections, one thread for each, and its script (LuaJIT) takes
the time from sending a request to having its answer. The receipt in the answer says how long the request
waited at a server and how long it was computed. The rest is what everything else adds.
"""

import argparse
import json
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from data_plane import PATH
from running import MACHINE, running, serve_command

from slimsched.serving.api.client.client import write_request

SCRIPT = """
local ffi = require("ffi")
ffi.cdef[[
typedef struct {{ long tv_sec; long tv_nsec; }} slim_time;
int clock_gettime(int clock, slim_time *time);
]]
local time = ffi.new("slim_time")
local function now_ms()
  ffi.C.clock_gettime(1, time)
  return tonumber(time.tv_sec) * 1e3 + tonumber(time.tv_nsec) / 1e6
end
local threads = 0
function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end
local sent, out, whole
function init(args)
  math.randomseed(number)
  out = io.open("{folder}/" .. number, "w")
  out:setvbuf("line")
  local file = io.open("{folder}/body", "rb")
  local body = file:read("*a")
  file:close()
  local headers = {{}}
  headers["content-type"] = "application/octet-stream"
  headers["inference-header-content-length"] = "{json_bytes}"
  whole = wrk.format("POST", "{path}", headers, body)
end
function delay()
  return math.floor(-math.log(1 - math.random()) * {gap_ms} + 0.5)
end
function request()
  sent = now_ms()
  return whole
end
function response(status, headers, body)
  local took = now_ms() - sent
  local queue = body:match('"queue_ms":([%d.e-]+)')
  local compute = body:match('"compute_ms":([%d.e-]+)')
  out:write(status, " ", took, " ", queue or "nan", " ", compute or "nan", "\\n")
end
"""


def measure(url: str, options: argparse.Namespace) -> dict[str, object]:
    """Send requests for a while; return percentiles of where their time went, in milliseconds."""
    pixels = np.random.default_rng(0).integers(256, size=(options.images, 3, 32, 32)).astype(np.uint8)
    given = {} if options.plan == "any" else {"plan": options.plan}
    body, json_bytes = write_request({"images": pixels}, ("classes",), given)
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "body").write_bytes(body)
        gap_ms = 1e3 * options.connections / options.rate
        script = SCRIPT.format(folder=folder, path=PATH, json_bytes=json_bytes, gap_ms=gap_ms)
        (folder / "script.lua").write_text(script)
        count = str(options.connections)
        command = [options.wrk, "-t", count, "-c", count, "-d", f"{options.seconds:.0f}s"]
        subprocess.run(
            [*command, "-s", str(folder / "script.lua"), url], check=True, stdout=subprocess.DEVNULL
        )
        lines = [
            line.split() for number in range(options.connections) for line in _lines(folder / str(number + 1))
        ]
    rows = np.array([[float(word) for word in line] for line in lines if len(line) == 4])
    good = rows[rows[:, 0] == 200][len(rows) // 10 :]  # the first ones meet a cold server
    took, queue, compute = good[:, 1], good[:, 2], good[:, 3]
    spent = {"all": took, "queue": queue, "compute": compute, "added": took - queue - compute}
    percentiles = {
        name: [round(float(np.percentile(values, share)), 3) for share in (50, 90, 99)]
        for name, values in spent.items()
    }
    return {"requests": len(rows), "per_s": round(len(rows) / options.seconds), **percentiles}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def main() -> None:
    """Serve, measure in rounds, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--config", default=MACHINE, help="scenario; machine: its own choice")
    parser.add_argument("--fronts", type=int, default=0)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--plan", default="1.0", help="a plan, or any: the router chooses")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--port", type=int, default=18700)
    parser.add_argument("--wrk", default="wrk")
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    command = serve_command(options.config, options.fronts, options.port)
    with TemporaryDirectory() as folder, running(command, f"{url}/v2/health/ready", Path(folder) / "log"):
        for _ in range(options.rounds):
            print(json.dumps({"fronts": options.fronts, **measure(url, options)}), flush=True)


if __name__ == "__main__":
    main()
