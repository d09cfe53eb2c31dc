"""The command ``tensordiff``: chooses the command to run, and turns every failure into an exit status.

``--help`` and completion must be quick, so only click is imported here: each command is a module of its own, loaded
when it runs, and the texts of the list of commands are kept here. Only this module turns errors into exit statuses.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from importlib import import_module
from time import sleep
from types import FrameType
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from tensordiff import __version__
from tensordiff.capture.engines import ENGINES
from tensordiff.cli import streams
from tensordiff.errors import TensordiffError, printable, printable_lines
from tensordiff.secrets import keep_secrets

COMMANDS = {
    "compare": "Pair two dumps, measure every pair, name the culprit.",
    "bisect": "Find the first bad layer by binary search: you answer, or the verdicts do.",
    "capture": "Run a model and write the inputs and outputs of every layer.",
    "replay": "Run one layer alone on the inputs of a dump; write a repro of it.",
    "align": "Show pairs, orphans and suggestions; write a rules file.",
    "tolerances": "Find tolerances that pass; write them for compare to enforce.",
    "report": "Write a report, or what changed since an earlier one.",
    "verify": "Capture both sides, compare without and with injection, write reports.",
    "weights": "Compare two checkpoints as parameters: rows, heads, experts, scales.",
    "inspect": "Show what is in a dump.",
    "convert": "Write any dump as tensordiff's own format, or as safetensors.",
    "lint": "Check a dump, or a pair, for mistakes.",
    "demo": "Open the sample dumps that come with tensordiff.",
    "serve": "Open two dumps in the app, in a browser.",
    "doctor": "Show what this install can do, and check that it measures correctly.",
}
EPILOG = """\b
Everyday:
  tensordiff REF CAND                 open two dumps in the app, the trusted one first
  tensordiff compare REF CAND         print the comparison; --json for a script
  tensordiff bisect REF CAND --auto   binary search that reads few pairs; without --auto you judge
  tensordiff align REF CAND           how names were paired, and what is left over
  tensordiff tolerances REF CAND      which tolerances would pass, for compare --tolerances
  tensordiff report REF CAND -o F     a report to share: F is .md .html .json .txt .csv or .png
  tensordiff verify REF CAND -o DIR   with and without injection, reports in a folder
  tensordiff weights A B              two checkpoints, parameter by parameter
  tensordiff inspect DUMP             what was captured
  tensordiff lint REF CAND            is the comparison fair?
  tensordiff serve REF CAND           the app in a browser

A dump is a file or a folder: .safetensors, .pt, .max, .npy, .npz, .gguf, .msgpack, MAX's print-hook and
verify_layers folders, those of a dozen other tools (docs/formats.md), tensordiff's own.
Exit status: 0 agrees, 1 diverges, 2 inconclusive, 130 interrupted.
Completion for your shell: eval "$(_TENSORDIFF_COMPLETE=bash_source tensordiff)" (or zsh_source, fish_source).
"""
_DEBUG, _COMPLETE = "--debug", "_TENSORDIFF_COMPLETE"
_HELP = frozenset({"-h", "--help", "--version"})
_LIKE_A_PATH = re.compile(r"[./\\~]")


class _Commands(click.Group):
    """Commands by name; two paths without a command are a comparison."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return _load(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Accept an option of a comparison before its paths, too."""
        return super().parse_args(ctx, ["--", *args] if args and _is_comparison_option(args[0]) else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in COMMANDS:
            return args[0], _load(args[0]), args[1:]
        if _is_side(args[0]) or _is_comparison_option(args[0]):
            name = "open" if _opens_the_app(args) else "compare"
            return name, _load(name), args
        if not ctx.resilient_parsing:
            ctx.fail(_unknown(args[0]))
        return None, None, args


def _is_side(word: str) -> bool:
    """Whether a word is the path of a dump, or a source."""
    kind, colon, _ = word.partition(":")
    if _LIKE_A_PATH.search(word) or (colon and kind in ENGINES):
        return True
    return os.path.exists(word)  # noqa: PTH110 - a Path raises on a name too long


def _opens_the_app(args: list[str]) -> bool:
    """Whether the arguments open the app: on a terminal, unless one is an option that only compare has."""
    if not streams.has_screen():
        return False
    known = _options_of("open") | _HELP
    return all(arg.partition("=")[0] in known for arg in args if arg.startswith("-"))


def _is_comparison_option(word: str) -> bool:
    """Whether a word is an option of ``compare`` or of the app."""
    name = word.partition("=")[0]
    return name.startswith("--") and name not in _HELP and name in _options_of("compare") | _options_of("open")


def _options_of(command: str) -> set[str]:
    return {name for param in _load(command).params for name in (*param.opts, *param.secondary_opts)}


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, 1)
    hint = f"perhaps you mean {near[0]}" if near else f"commands are {', '.join(COMMANDS)}"
    return f"{word!r:.80} is neither a command nor a file or folder; {hint}"


def _load(name: str) -> click.Command:
    command = import_module(f"tensordiff.cli.commands.{name}").command
    assert isinstance(command, click.Command)  # noqa: S101 - a module of ours without a command is a bug
    return command


@click.group(
    cls=_Commands,
    epilog=EPILOG,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option(_DEBUG, is_flag=True, expose_value=False, help="Show a traceback when something fails.")
@click.version_option(__version__, prog_name="tensordiff")
@click.pass_context
def tensordiff(ctx: click.Context) -> int:
    """Find the first tensor where two runs of the same neural network stop agreeing."""
    if ctx.invoked_subcommand is not None:
        return 0
    if streams.has_screen():
        from tensordiff.cli.commands.open import run_app

        return run_app()
    streams.say(ctx.get_help())
    return 2


class _Terminated(KeyboardInterrupt):
    """The process was ended from outside: as with Ctrl-C, everything is cleaned up first."""


def _terminate(*_: object) -> NoReturn:
    raise _Terminated


def _repeat_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Send a Ctrl-C again that came while an object was destroyed, where nothing could catch it."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    import threading

    number = signal.SIGTERM if issubclass(lost.exc_type, _Terminated) else signal.SIGINT
    main_thread = threading.main_thread().ident
    threading.Thread(target=_send_later, args=(number, main_thread), daemon=True).start()


def _send_later(number: signal.Signals, main_thread: int) -> None:
    """Send a signal once the main thread has left ``_repeat_interrupt``: raised inside it, it would be lost again."""
    while _is_repeating(sys._current_frames().get(main_thread)):
        sleep(0.001)
    os.kill(os.getpid(), number)


def _is_repeating(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _repeat_interrupt.__code__:
        frame = frame.f_back
    return frame is not None


def run() -> NoReturn:
    """The console script."""
    streams.prepare()
    sys.unraisablehook = _repeat_interrupt
    args = sys.argv[1:]
    keep_secrets(*args)
    try:
        signal.signal(signal.SIGTERM, _terminate)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup asks to continue without a terminal
            signal.signal(signal.SIGHUP, _terminate)
        status = _exit_status([arg for arg in args if arg != _DEBUG], _DEBUG in args)
        # it is over, and a late Ctrl-C must change neither status nor output
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except KeyboardInterrupt as error:  # just before the command began, or just after it was done
        status = _status_of(error)
    # A Ctrl-C inside text that Python executes, as dataclasses do on import, is remembered as unhandled, and python -m
    # then ends by the signal instead of the status. Executing something else clears it.
    exec("")  # noqa: S102
    sys.exit(status)


def _status_of(error: BaseException) -> int:
    return 143 if isinstance(error, _Terminated) else 130


def _exit_status(args: list[str], debug: bool) -> int:
    """Run the command that the arguments name."""
    try:
        if _COMPLETE in os.environ:
            tensordiff.main(args, prog_name="tensordiff")
        # Not by main: click's would exit with status 1 when a pipe breaks.
        before = _lost_files("count_losses") or 0
        with tensordiff.make_context("tensordiff", args) as context:
            status = tensordiff.invoke(context)
        _lost_files("compare_sizes")
        _lost_files("raise_unclaimed", before)
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except BrokenPipeError:
        streams.abandon_stdout()  # the reader (head, less) has what it wanted
        return 2
    except (KeyboardInterrupt, click.Abort) as error:
        streams.say("interrupted")
        return _status_of(error)
    except Exception as error:  # status 1 must mean only that tensors diverge
        if debug:
            _show_traceback()
        if isinstance(error, OSError):
            streams.abandon_stdout()
        streams.say(f"tensordiff: {printable(_sentence(error))}")
        return 2


def _lost_files(function: str, *args: int) -> Any:
    """Call a function of ``util.mappings``, about files that became shorter while they were read, if it is loaded at
    all.
    """
    mappings = sys.modules.get("tensordiff.util.mappings")
    return mappings and getattr(mappings, function)(*args)


def _show_traceback() -> None:
    """Print the traceback. It may quote text from outside, such as a child's log or a layer's name."""
    import traceback

    streams.say(printable_lines(traceback.format_exc()).rstrip("\n"))


def _sentence(error: Exception) -> str:
    match error:
        case TensordiffError():
            return str(error)
        case click.ClickException():
            return _usage(error)
        case MemoryError():
            return "not enough memory; close other programs, or compare fewer layers with --only"
        case RecursionError():
            return "the input is nested too deeply to be a dump"
        case OSError():
            return f"{error}; is there room, and may it be written and read?"
    return f"a defect of tensordiff ({type(error).__name__}: {error}); run it with --debug and report what that shows"


def _usage(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "tensordiff"
    return f"{error.format_message().rstrip('.')}; see {where} --help"
