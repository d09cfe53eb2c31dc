"""``tensordiff capture``: run a source into a dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.cli.capture_options import Bytes, asking_options, running_options
from tensordiff.cli.options import DUMP, json_option


@click.command("capture", short_help="Run a model and write what every layer was given and gave.")
@click.argument("source")
@click.option("-o", "--output", type=DUMP, required=True, metavar="DIR", help="The folder to write; a new one.")
@asking_options
@running_options
@click.option("--layers", metavar="REGEX", help="Write only layers whose name matches.")
@click.option("--leaves", is_flag=True, help="Write only modules that hold no others.")
@click.option("--no-inputs", is_flag=True, help="Write outputs only.")
@click.option("--max-bytes", type=Bytes(), metavar="SIZE", help="Stop writing at this size: 500MB, 2GB.")
@click.option(
    "--ops",
    metavar="LAYER",
    help="Write every operation within this layer instead; with --inject, on the reference's inputs.",
)
@click.option("--inject", type=DUMP, metavar="DUMP", help="Give layers the inputs that this dump recorded.")
@click.option("--inject-at", default="all", metavar="WHERE", help="all, once, leaves, a layer, FROM..TO, or a REGEX.")
@click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make the two sides' names alike.")
@click.option("--force", is_flag=True, help="Write over an earlier dump, and where the disk seems too small.")
@json_option
def command(source: str, output: Path, as_json: bool, **options: Any) -> int:
    """Run a model once, and write what every layer was given and gave, in execution order.

    \b
    hf:PATH_OR_ID         a transformers model, with its own tokenizer or processor
    max:PATH_OR_ID        the same checkpoint on Modular MAX
    onnx:FILE             an exported graph, run by onnxruntime
    py:FILE.py:FUNCTION   your own: the function returns (module, args, kwargs), or yields such steps

    The model runs in a process of its own. Ctrl-C ends it; what was written until then can be opened.

    With --inject, each matched layer is given the inputs that the reference recorded, so that an error shows only
    where it arises; the dump says what could not be injected, and why. WHERE is one of

    \b
    all        every layer by itself, its parts running on their own: one pass for each level of nesting
    once       every layer in one single pass: parts hide from what holds them
    leaves     only modules that hold no others, in one pass
    LAYER      one layer by its name; its parts run on their own
    FROM..TO   all is made right up to TO, then left to run: does the rest heal?
    REGEX      layers whose name matches, as all does

    Compare afterwards with: tensordiff compare REF CAND --injected DIR

    Exit status: 0 captured, 2 not, or not to its end, 130 interrupted.
    """
    from tensordiff.cli.capturing import capture

    return capture(source, output, options, as_json=as_json)
