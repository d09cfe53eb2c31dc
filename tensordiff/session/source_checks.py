"""Checks before anything is run: a source's file, function, model and engine exist, and dumps beside it can be opened.

Running the reference may take an hour, so a misspelt candidate is reported first. No framework is imported here; errors
that show only when a model is loaded are left to the engine.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from tensordiff.capture.engines import BUILT_IN, ENGINES, missing_sentence
from tensordiff.capture.interpreter import NoAnswer, ask, interpreter
from tensordiff.capture.job import Source
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError, printable
from tensordiff.session.session import rules_of_request
from tensordiff.session.sources import Sources, refuse_source, refuse_unused_options

_WANTED = "give a folder with config.json, or the id of a model on the hub"
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


def check_sources(sources: Sources, *, reruns: bool = False) -> None:
    """Raise if a side, or a third dump beside sources, cannot be what the request takes it for.

    If both sides are dumps, options of sources are refused; ``reruns`` is passed to ``refuse_unused_options``.
    """
    request, first = sources.request, sources.side
    if first is None:
        refuse_unused_options(request, reruns=reruns)
        return  # everything else is reported just as early by opening the dumps
    own = request.candidate_settings
    if sources.candidate is None and own is not None and own.device != request.settings.device:
        raise CaptureError("--candidate-device: the candidate is a dump, and is not run; leave it out")
    settings = {"reference": request.settings, "candidate": request.candidate_settings or request.settings}
    for side, source, path in (
        ("reference", sources.reference, request.reference),
        ("candidate", sources.candidate, request.candidate),
    ):
        if source is None:
            open_dump(path)
        else:
            _check_source(source, settings[side], is_first=side == first)
    request.limits_with(rules_of_request(request))  # reads rules, tolerances and session
    for third in filter(None, (request.golden, request.injected)):
        refuse_source(third)
        open_dump(third)


def check_target(source: Source) -> None:
    """Refuse a source whose target cannot be what its engine takes, by what lies on this machine alone."""
    engine, path = ENGINES[source.kind], Path(source.target).expanduser()
    if engine.takes_file and not path.is_file():
        found = "is a folder" if path.is_dir() else "there is no such file"
        raise CaptureError(f"{printable(source)}: {found}; write {engine.spelling}")
    if source.kind == "py":
        _check_function(source, path)
    if source.kind not in BUILT_IN or engine.takes_file:
        return
    if path.is_file():
        runs = f"; llamacpp:{printable(source.target)} runs it" if path.suffix.lower() == ".gguf" else ""
        raise CaptureError(f"{printable(source)}: is a file; {_WANTED}{runs}")
    if not path.exists() and not _HUB_ID.fullmatch(source.target):
        raise CaptureError(f"{printable(source)}: there is no such folder; {_WANTED}")


def _check_source(source: Source, settings: Settings, *, is_first: bool) -> None:
    engine, path = ENGINES[source.kind], Path(source.target).expanduser()
    check_target(source)
    python = interpreter(source.kind, settings.python)
    if missing := _missing_packages(python, engine.packages):
        raise CaptureError(missing_sentence(source.kind, python, missing))
    if source.kind in BUILT_IN and not engine.takes_file and not path.exists() and not is_first:
        _check_hub(source, python, settings.revision)  # the first side says it itself, as early


def _check_function(source: Source, path: Path) -> None:
    """Refuse a function that a file neither defines nor imports, as far as its syntax tree shows."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # importing the file reports what is wrong, and where
    if not {source.function, "*", "__getattr__"}.intersection(_names(tree)):
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        there = ", ".join(map(printable, functions[:8])) or "none"
        raise CaptureError(f"{printable(path)}: has no function {printable(source.function)}; there are: {there}")


def _names(tree: ast.AST) -> Iterator[str]:
    """Names that a file may define or import anywhere; ``*`` stands for any name."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name
            case ast.Call(func=ast.Name(id="globals" | "setattr" | "exec")):
                yield "*"


_FIND = "import importlib.util as u, sys; print(' '.join(n for n in sys.argv[1:] if u.find_spec(n) is None))"


def _missing_packages(python: str, packages: tuple[str, ...]) -> list[str]:
    """Packages that an interpreter lacks; none if the interpreter does not answer."""
    if python == sys.executable:
        return [name for name in packages if find_spec(name) is None]
    with suppress(NoAnswer):  # reported when the source is run
        return ask(python, _FIND, *packages).split()
    return []


_LOOK_UP = """
import sys
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError, \\
    RevisionNotFoundError
try:
    hf_hub_download(sys.argv[1], "config.json", revision=sys.argv[2] or None)
except LocalEntryNotFoundError:
    print("it cannot be reached, and its cache has no such model")
except (HFValidationError, RepositoryNotFoundError, RevisionNotFoundError) as error:
    print(f"{type(error).__name__}: {str(error).strip()}".partition(chr(10))[0])
except Exception:
    pass  # a model may have no such file; whatever else is wrong, loading it says it better
"""


def _check_hub(source: Source, python: str, revision: str | None) -> None:
    """Refuse a target that is neither a folder nor a model on the hub."""
    said = ""
    with suppress(NoAnswer):  # reported when the source is run
        said = ask(python, _LOOK_UP, source.target, revision or "").strip()
    if said:
        raise CaptureError(
            f"{printable(source)}: is not a folder here, and is not available on the hub ({printable(said):.200}); "
            f"{_WANTED}"
        )
