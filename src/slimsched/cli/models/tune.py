"""`slim model tune`: find the fastest way to run a model on this machine that keeps its answers."""

import json
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from slimsched.cli.options import AsJson, with_options
from slimsched.core.config import Count, ThreadCount


@with_options
def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Model folder.")],
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="Where to run.")] = "cpu",
    batch: Annotated[Count, typer.Option("--batch", help="Batch size to time.")] = 8,
    examples: Annotated[Count, typer.Option("--examples", help="Examples to compare answers on.")] = 64,
    threads: Annotated[ThreadCount, typer.Option("--threads", help="CPU threads to use.")] = 1,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Try torch.compile too; compiling takes minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Try half precision, another memory format and torch.compile; keep the fastest way in DIR/run.toml.

    A way counts only if at least 99 % of the answers stay the same. Measure the profile again afterwards.

    Example: slim model tune my-model --compile
    """
    import torch

    from slimsched.models.elastic import pick_device, write_run_options
    from slimsched.serving.execution.live.tuning import LEAST_AGREEMENT, tune
    from slimsched.serving.execution.model_source import read_model

    torch.set_num_threads(threads)
    model = read_model(str(folder), rated=False)
    with Console(stderr=True).status("starting") as status:
        tried, best = tune(
            model,
            pick_device(device),
            batch=batch,
            examples=max(batch, examples),
            compiled=compiled,
            progress=lambda options: status.update(f"running as {options}"),
        )
    write_run_options(folder, device, best.options)
    if as_json:
        print(json.dumps({"tried": msgspec.to_builtins(tried), "chosen": msgspec.to_builtins(best.options)}))
        return
    table = Table("way to run", "plan", "examples/s", "same answers", title_justify="left")
    for one in tried:
        for plan, per_s in one.per_s.items():
            table.add_row(str(one.options), plan, f"{per_s:,.1f}", f"{one.agreement:.1%}")
        if one.trouble:
            table.add_row(str(one.options), "-", "-", f"does not run: {one.trouble}")
    console = Console()
    console.print(table)
    console.print(f"chosen for {device}: {best.options} ({LEAST_AGREEMENT:.0%} of the answers must stay)")
    console.print(f"written: {folder / 'run.toml'}; measure again with slim model profile {folder}")
