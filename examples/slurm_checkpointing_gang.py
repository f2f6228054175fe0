#!/usr/bin/env python3
"""A training job that survives preemption: it saves its step when Slurm stops it and continues from there.

    slim jobs submit --gpus 8 examples/slurm_checkpointing_gang.py /shared/run1 --steps 1000

When the controller preempts the job, Slurm sends SIGTERM, and SIGKILL `KillWait` seconds later. A real
training run would save its weights and optimiser here. The journal gets one line for each start and each end.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Train until the last step, or until Slurm asks to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "folder", type=Path, help="folder for checkpoint and journal, which every node must see"
    )
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.1)
    arguments = parser.parse_args()

    job = os.environ.get("SLURM_JOB_ID", "0")
    checkpoint = arguments.folder / f"{job}.step"
    step = int(checkpoint.read_text()) if checkpoint.exists() else 0
    stop = False

    def ask_to_stop(*_: object) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    note(arguments.folder, job, "started", step)
    while step < arguments.steps and not stop:
        time.sleep(arguments.step_s)  # forward, backward, all-reduce
        step += 1
    save(checkpoint, step)
    note(arguments.folder, job, "stopped" if stop else "finished", step)
    sys.exit(143 if stop else 0)


def save(checkpoint: Path, step: int) -> None:
    """Write the checkpoint in one step, so that it is never half written."""
    partial = checkpoint.with_suffix(".partial")
    partial.write_text(str(step))
    partial.replace(checkpoint)


def note(folder: Path, job: str, what: str, step: int) -> None:
    """Add a line to the journal."""
    with (folder / "journal").open("a") as journal:
        journal.write(f"{job} {what} at step {step} on {os.environ.get('SLURM_JOB_NODELIST', '')}\n")


if __name__ == "__main__":
    main()
