#!/usr/bin/env -S python3 -S -E
"""The batch script of a gang: asks the gang server for one process per machine and waits until they are done.

    sbatch gang.py SOCKET COMPUTE_S GRADIENT_BYTES STEPS

When Slurm stops it, the server sees the socket close and stops the processes. Their steps are kept.
"""

import json
import os
import socket
import sys

path, compute_s, gradient_bytes, steps = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.connect(path)
request = {
    "job": os.environ["SLURM_JOB_ID"],
    "nodes": os.environ["SLURM_JOB_NODELIST"],
    "compute_s": float(compute_s),
    "gradient_bytes": int(gradient_bytes),
    "steps": int(steps),
}
server.sendall(json.dumps(request).encode() + b"\n")
sys.exit(0 if server.recv(16) == b"done" else 1)
