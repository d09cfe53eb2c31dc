"""Which interpreter runs a source: the one of the command line, the engine's own environment, or this one.

Some engines pin other versions of torch than tensordiff is tested with, so each has an environment of its own beside
the one that tensordiff runs in: ``.venv-vllm`` beside ``.venv``. The user's own ``tensordiff.toml`` may name another.
Neither the current folder nor a dump is ever asked: both may be a stranger's.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from tensordiff.capture.engines import ENGINES
from tensordiff.errors import BadFile
from tensordiff.util.small_files import TooLong, read_small

NAME = "tensordiff.toml"
TABLE = "engines"
_MAX_BYTES = 1 << 20


def user_file() -> Path:
    """The file of preferences in the user's configuration folder, whether it is there or not."""
    from platformdirs import user_config_path

    return user_config_path("tensordiff", appauthor=False) / NAME


def interpreter(kind: str, said: str | None = None) -> str:
    """The interpreter for sources of a kind; ``said`` is what the command line names."""
    if said is not None:
        return said
    if ENGINES[kind].has_environment:
        for environment in (_of_user(kind), Path(sys.prefix).parent / f".venv-{kind}"):
            if environment is not None and (python := _python_in(environment)) is not None:
                return str(python)
    return sys.executable


def _of_user(kind: str) -> Path | None:
    """What the user's own file names; raises ``BadFile`` where that is no interpreter."""
    path = user_file()
    if not path.is_file():
        return None
    try:
        engines = tomllib.loads(read_small(path, _MAX_BYTES).decode("utf-8")).get(TABLE, {})
    except (OSError, ValueError, TooLong, RecursionError) as error:
        raise BadFile(path, f"the preferences cannot be read ({error})") from error
    named = engines.get(kind) if isinstance(engines, dict) else None
    if named is None:
        return None
    found = Path(str(named)).expanduser()
    if not isinstance(named, str) or not found.is_absolute() or _python_in(found) is None:
        raise BadFile(path, f"[{TABLE}] {kind}: should be the absolute path of an environment or its interpreter")
    return found


def _python_in(path: Path) -> Path | None:
    """The interpreter of an environment, or the path itself where it is one."""
    if path.is_file():
        return path
    return next((python for name in ("bin/python", "Scripts/python.exe") if (python := path / name).is_file()), None)
