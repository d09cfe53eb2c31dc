"""Which interpreter runs a source, and asking an interpreter questions before a run.

The interpreter is the one given on the command line, the engine's own environment, or the current one. Some engines
need other versions of torch than tensordiff is tested with, so each has an environment of its own beside the one that
tensordiff runs in: ``.venv-vllm`` beside ``.venv``. The user's own ``tensordiff.toml`` may name another. The current
folder and dumps are never consulted: both may be a stranger's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import which
from typing import Any

from tensordiff.capture.engines import ENGINES
from tensordiff.errors import BadFile, printable
from tensordiff.util.small_files import TooLong, read_small

NAME = "tensordiff.toml"
TABLE = "engines"
_MAX_BYTES = 1 << 20
_PATIENCE_S = 120.0
"""Importing a framework may take most of a minute on a busy machine."""
_RUN = """
import sys
sys.path[:] = [folder for folder in sys.path if folder]
exec(compile(sys.argv.pop(1), "asked", "exec"))
"""
"""Runs the program that follows, without importing files in the current folder instead of packages."""


class NoAnswer(Exception):
    """An interpreter did not start, failed, or took too long."""

    def __init__(self, python: str, cause: Exception) -> None:
        super().__init__(f"{python} could not be asked ({type(cause).__name__})")
        self.has_started = not isinstance(cause, OSError)


def user_file() -> Path:
    """The path of the preferences in the user's configuration folder, whether the file exists or not."""
    from platformdirs import user_config_path

    return user_config_path("tensordiff", appauthor=False) / NAME


def read_preferences_file(path: Path) -> dict[str, Any]:
    """Read a ``tensordiff.toml``; raises ``BadFile`` if it cannot be read."""
    try:
        return tomllib.loads(read_small(path, _MAX_BYTES).decode("utf-8"))
    except TooLong as error:
        raise BadFile(path, "is too large to be a file of preferences") from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(path, f"the preferences cannot be read ({error})") from error
    except (ValueError, RecursionError) as error:  # an integer of thousands of digits is no TOMLDecodeError
        raise BadFile(path, f"is not valid TOML ({error})") from error


def interpreter(kind: str, said: str | None = None) -> str:
    """The interpreter for sources of a kind; ``said`` is the one, or the environment, given on the command line."""
    if said is not None:
        folder = Path(said).expanduser()
        is_command = os.sep not in said and which(said) is not None  # a folder of that name may be a stranger's
        inside = _python_in(folder) if not is_command and folder.is_dir() else None
        return said if inside is None else str(inside)
    if ENGINES[kind].has_environment:
        for environment in (_of_user(kind), Path(sys.prefix).parent / f".venv-{kind}"):
            if environment is not None and (python := _python_in(environment)) is not None:
                return str(python)
    return sys.executable


def ask(python: str, program: str, *arguments: str) -> str:
    """Run a program in an interpreter and return what it prints; raises ``NoAnswer``.

    The environment is passed explicitly because Mojo, once imported, sets PYTHONEXECUTABLE in C, and a child without an
    environment of its own would inherit that.
    """
    command = [python, "-c", _RUN, program, *arguments]
    environment = os.environ | {"PYTHONIOENCODING": "utf-8"}
    try:
        return subprocess.run(  # noqa: S603 - the interpreter that is to run the user's source
            command, capture_output=True, encoding="utf-8", check=True, timeout=_PATIENCE_S, env=environment
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        raise NoAnswer(python, error) from error


def ask_json(python: str, program: str, *arguments: str) -> dict[str, Any]:
    """The JSON object in the last line that a program prints; imports may print other lines before it."""
    try:
        return dict(json.loads(ask(python, program, *arguments).strip().rpartition("\n")[2]))
    except (ValueError, TypeError) as error:
        raise NoAnswer(python, error) from error


def _of_user(kind: str) -> Path | None:
    """The environment that the user's own file names for a kind; raises ``BadFile`` if it has no interpreter."""
    path = user_file()
    if not path.is_file():
        return None
    engines = read_preferences_file(path).get(TABLE, {})
    named = engines.get(kind) if isinstance(engines, dict) else None
    if named is None:
        return None
    found = Path(str(named)).expanduser()
    if not isinstance(named, str) or not found.is_absolute() or _python_in(found) is None:
        wanted = "should be the absolute path of an environment or its interpreter"
        raise BadFile(path, f"[{TABLE}] {kind}: {wanted}, and {printable(named)} is none")
    return found


def _python_in(path: Path) -> Path | None:
    """The interpreter of an environment, or the path itself if it is an interpreter."""
    if path.is_file():
        return path
    return next((python for name in ("bin/python", "Scripts/python.exe") if (python := path / name).is_file()), None)
