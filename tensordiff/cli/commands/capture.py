"""``tensordiff capture``: runs a source into a dump, showing its progress on stderr."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tensordiff.capture.job import Job, required_source
from tensordiff.capture.runner import Run, dump_at
from tensordiff.capture.settings import Injection
from tensordiff.cli.options import PATH, Bytes, capture_settings, input_options, json_option, run_options
from tensordiff.cli.sources import follow
from tensordiff.cli.streams import echo
from tensordiff.cli.upload import path_to_write, upload
from tensordiff.errors import CaptureError, WriteError, printable
from tensordiff.report.comparison_json import dumps
from tensordiff.session.source_checks import check_target
from tensordiff.util.sizes import format_bytes

SCHEMA = "tensordiff.capture/1"


@click.command("capture")
@click.argument("source")
@click.option(
    "-o", "--output", type=PATH, required=True, metavar="DIR", help="The folder to write, a new one; or a URL."
)
@input_options
@run_options
@click.option("--layers", metavar="REGEX", help="Write only layers whose name matches.")
@click.option("--leaves", is_flag=True, help="Write only modules without submodules.")
@click.option("--no-inputs", is_flag=True, help="Write outputs only.")
@click.option("--max-bytes", type=Bytes(), metavar="SIZE", help="Stop writing at this size: 500MB, 2GB.")
@click.option(
    "--ops",
    metavar="LAYER",
    help="Write every operation within this layer instead; with --inject, on the reference's inputs.",
)
@click.option("--inject", type=PATH, metavar="DUMP", help="Give layers the inputs that this dump recorded.")
@click.option("--inject-at", default="all", metavar="WHERE", help="all, once, leaves, a layer, FROM..TO, or a REGEX.")
@click.option("--rules", type=PATH, metavar="FILE", help="Rules (TOML) that make the two sides' names alike.")
@click.option("--force", is_flag=True, help="Overwrite an earlier dump; go ahead even if the disk seems too small.")
@json_option
def command(source: str, output: Path, as_json: bool, **options: Any) -> int:
    """Run a model once, and write the inputs and outputs of every layer, in execution order.

    \b
    hf:PATH_OR_ID         a transformers model, with its own tokenizer or processor
    max:PATH_OR_ID        the same checkpoint on Modular MAX
    onnx:FILE             an exported graph, run by onnxruntime
    vllm:PATH_OR_ID       the checkpoint on vLLM; mlx:PATH_OR_ID on MLX
    llamacpp:FILE.gguf    a GGUF file on llama.cpp
    py:FILE.py:FUNCTION   your own: the function returns (module, args, kwargs), or yields such steps

    The model runs in a process of its own. Ctrl-C ends it; what was written by then can be opened.

    With --inject, each matched layer is given the inputs that the reference recorded, so an error shows only
    where it arises; the dump says what could not be injected, and why. WHERE is one of

    \b
    all        every layer by itself, its parts running on their own: one pass for each level of nesting
    once       every layer in a single pass: a module does not show the errors of its parts
    leaves     only modules without submodules, in one pass
    LAYER      one layer by its name; its parts run on their own
    FROM..TO   everything up to TO gets the reference's values: does the rest recover?
    REGEX      layers whose name matches, as all does

    Compare afterwards with: tensordiff compare REF CAND --injected DIR

    Exit status: 0 captured, 2 failed or incomplete, 130 interrupted.
    """
    return capture(source, output, options, as_json=as_json)


def capture(text: str, output: Path, options: dict[str, Any], *, as_json: bool) -> int:
    """Capture, and print what was written; raises if nothing was."""
    source = required_source(text)
    inject, at, rules = options.pop("inject"), options.pop("inject_at"), options.pop("rules")
    if inject is not None:
        options["inject"] = Injection(_absolute(inject), at, None if rules is None else _absolute(rules))
    elif rules is not None or at != "all":
        raise CaptureError("--inject-at and --rules are about --inject DUMP, which was not given")
    local = path_to_write(output, overwrite=options["force"])
    if local is output and dump_at(str(output)) is not None and not options["force"]:
        raise WriteError(
            f"{printable(output)}: holds a dump already; choose a new folder, or overwrite it with --force"
        )
    job = Job(source, capture_settings(**options), str(local.absolute()))
    check_target(source)
    done = follow(Run(job))
    upload(local, output)
    if as_json:
        echo(
            dumps(
                {
                    "schema": SCHEMA,
                    "path": done.path if local is output else str(output),
                    "entries": done.entries,
                    **done.facts,
                }
            )
        )
    else:
        echo(f"captured {done.entries:,} tensors, {_size(done.facts.get('bytes'))}, in {printable(output)}")
    return 0


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())


def _size(nbytes: object) -> str:
    return format_bytes(nbytes) if isinstance(nbytes, int) else "size unknown"
