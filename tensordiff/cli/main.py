"""The command ``tensordiff``: which command runs, and how every failure leaves the process.

``--help`` must be quick, so nothing but click is imported here: each command is its own module,
loaded when it runs. This is the one place where errors become exit statuses.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from tensordiff import __version__
from tensordiff.errors import TensordiffError

COMMANDS = {
    "compare": "Pair two dumps, measure every pair, name the culprit.",
    "inspect": "Show what is in a dump.",
    "lint": "Say what is wrong with a dump, or with a pair, before any number is believed.",
    "demo": "Compare the sample dumps that come with tensordiff.",
}
EPILOG = """\b
Everyday:
  tensordiff REF CAND                 compare two dumps, REF being the trusted one
  tensordiff compare REF CAND --json  the same for a script
  tensordiff inspect DUMP             what was captured
  tensordiff lint REF CAND            is the comparison fair?

A dump is a file or a folder: .safetensors, .pt, .max, .npy, .npz, MAX's print-hook and verify_layers
folders, tensordiff's own. Exit status: 0 agrees, 1 diverges, 2 could not tell, 130 interrupted.
Completion for your shell: eval "$(_TENSORDIFF_COMPLETE=bash_source tensordiff)" (or zsh_source, fish_source).
"""


class _Commands(click.Group):
    """Commands by name; two paths without a command are a comparison."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if ctx.resilient_parsing or ctx.invoked_subcommand is not None or _is_running(cmd_name):
            return _load(cmd_name)
        return click.Command(cmd_name, short_help=COMMANDS[cmd_name], help=COMMANDS[cmd_name])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in COMMANDS:
            return args[0], _load(args[0]), args[1:]
        if len([arg for arg in args if not arg.startswith("-")]) >= 2:
            return "compare", _load("compare"), args
        return super().resolve_command(ctx, args)


def _is_running(name: str) -> bool:
    return name in sys.argv[1:]


def _load(name: str) -> click.Command:
    command = import_module(f"tensordiff.cli.{name}_command").command
    assert isinstance(command, click.Command)  # noqa: S101 - a module of ours without a command is a bug
    return command


@click.group(
    cls=_Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.version_option(__version__, prog_name="tensordiff")
@click.pass_context
def tensordiff(ctx: click.Context, debug: bool) -> None:
    """Find the first tensor where two runs of the same neural network stop agreeing."""
    ctx.obj = {"debug": debug}


def run() -> NoReturn:
    """The console script."""
    debug = "--debug" in sys.argv
    sys.exit(_guarded(debug))


def _guarded(debug: bool) -> int:
    try:
        return _call()
    except TensordiffError as error:
        if debug:
            raise
        return _fail(str(error))
    except BrokenPipeError:
        # The reader (head, less) has what it wanted; Python must not complain while closing stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        return 130
    except MemoryError:
        return _fail("not enough memory; close other programs, or compare fewer layers with --only")
    except RecursionError:
        return _fail("the input is nested too deeply to be a dump")


def _call() -> int:
    try:
        status = tensordiff(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except click.exceptions.Exit as leave:
        return leave.exit_code
    return status if isinstance(status, int) else 0


def _fail(sentence: str) -> int:
    click.echo(f"tensordiff: {sentence}", err=True)
    return 2
