"""Sessions for Python code: each side is a dump on disk, arrays in memory, or a source to run.

Arrays are numpy arrays or anything that numpy can convert; torch tensors are converted by ``.detach().cpu()``, without
importing torch. In all other respects the session is that of ``Session.open``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import ml_dtypes
import numpy as np

from tensordiff.align.rules.rule import Side
from tensordiff.capture.job import Job
from tensordiff.capture.settings import Settings
from tensordiff.compare.limits import Limits
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor, entry
from tensordiff.dump.native.convert import convert
from tensordiff.errors import TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.source_checks import check_sources
from tensordiff.session.sources import Sources, capture_folder, refuse_source, refuse_unused_options, source_in
from tensordiff.session.third_dumps import ThirdDumps
from tensordiff.session.weights import IN_MEMORY
from tensordiff.util.remote import user_path

PathLike = str | os.PathLike[str]
Arrays = Mapping[str, Any]
"""Arrays by name, in the order in which they were computed."""
RunJob = Callable[[Job, Side], Path]
"""Runs the source of a side to its end and returns the path of its dump."""


class SessionOptions(TypedDict, total=False):
    """The fields of ``Request`` that may be given as keyword arguments, beside the two sides."""

    golden: PathLike | Arrays | None
    injected: PathLike | Arrays | None
    rules: PathLike | None
    tolerances: PathLike | None
    limits: Limits
    step: int | None
    only: str | None
    min_coverage: float
    allow_partial: bool
    learn: bool
    keep: PathLike | None


_PATHS = ("rules", "tolerances", "keep")


def session_of(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    settings: Settings | None = None,
    run: RunJob | None = None,
    note: Callable[[str], None] | None = None,
    reruns: bool = False,
    **options: Unpack[SessionOptions],
) -> Session:
    """Open a session of dumps, of arrays, of sources that ``run`` runs, or of a mixture.

    ``note`` receives sentences on how the sources are run; ``reruns`` is passed to ``refuse_unused_options``.
    """
    golden, injected = options.get("golden"), options.get("injected")
    asked: dict[str, Any] = {**options, "golden": _path(golden), "injected": _path(injected)}
    asked |= {name: _path(asked[name]) for name in _PATHS if name in asked}
    sides = _path(reference) or Path("reference"), _path(candidate) or Path("candidate")
    request = Request(*sides, settings=settings or Settings(), **asked)
    if run is not None and has_source(reference, candidate):
        request = _run_sources(request, reference, candidate, run, note)
        reference = reference if isinstance(reference, Mapping) else request.reference
        candidate = candidate if isinstance(candidate, Mapping) else request.candidate
    elif run is not None:
        refuse_unused_options(request, reruns=reruns)
    third_dumps = ThirdDumps(
        injected=None if injected is None else _dump("injected", injected),
        golden=None if golden is None else _dump("golden", golden),
    )
    return Session.of_dumps(request, _dump("reference", reference), _dump("candidate", candidate), third_dumps)


def has_source(*sides: PathLike | Arrays) -> bool:
    """Whether any side is a source that has to be run."""
    return any(path is not None and source_in(path) is not None for path in map(_path, sides))


def _run_sources(
    request: Request,
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    run: RunJob,
    note: Callable[[str], None] | None,
) -> Request:
    """The request with each source replaced by a dump; arrays beside a source are written to a temporary dump."""
    if isinstance(reference, Mapping):
        request = replace(request, reference=write_arrays("reference", reference))
    if isinstance(candidate, Mapping):
        request = replace(request, candidate=write_arrays("candidate", candidate))
    sources = Sources.of(request)
    check_sources(sources)
    if note is not None:
        for sentence in sources.unused_options():
            note(sentence)
    while (side := sources.side) is not None:
        sources = sources.with_dump(run(sources.job(), side))
    return sources.request


def write_arrays(name: str, arrays: Arrays, keep: Path | None = None) -> Path:
    """Write arrays as a dump into the folder that is kept, or into one that is deleted when the process ends."""
    path = capture_folder(name, keep)
    deque(convert(dump_of_arrays(name, arrays), path), maxlen=0)
    return path


def dump_of_arrays(name: str, arrays: Arrays) -> Dump:
    """Arrays as a dump in memory; ``name`` takes the place of its path."""
    entries = tuple(entry(key, MemoryTensor(_array(key, value))) for key, value in arrays.items())
    return Dump(Path(name), IN_MEMORY, entries, ordered=True).without_oversized_names()


def _path(given: PathLike | Arrays | None) -> Path | None:
    if given is None or isinstance(given, Mapping):
        return None
    if not isinstance(given, str | os.PathLike):
        raise _unusable_side(given)
    return user_path(given)


def _dump(name: str, given: PathLike | Arrays) -> Dump:
    if isinstance(given, Mapping):
        return dump_of_arrays(name, given)
    path = _path(given)
    if path is None:
        raise _unusable_side(given)
    refuse_source(path)
    return open_dump(path)


def _unusable_side(given: object) -> TensordiffError:
    """The error for a side that is neither a path nor arrays by name, such as a single array."""
    return TensordiffError(
        f"{type(given).__name__} is not something to compare; give the path of a dump, a source such as 'hf:MODEL', or "
        "arrays by name, in the order they were computed: {'output': array}"
    )


def _array(name: str, value: Any) -> Array:
    if not isinstance(name, str):
        raise TensordiffError(f"{name!r}: is not the name of a tensor; names are text")
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no bfloat16; take the bits as int16
            return np.asarray(value.view(value.new_empty(0).short().dtype)).view(ml_dtypes.bfloat16)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:  # numpy's own message is about how it builds arrays
        raise TensordiffError(
            f"{name!r}: no array can be made of this {type(value).__name__}; give an array of numbers, or lists of "
            "equal length"
        ) from error
    if array.dtype.kind not in "biufcV" or array.dtype.type is np.void:  # a record does not have one number per place
        raise TensordiffError(f"{name!r}: is of type {array.dtype}, which holds no numbers; give arrays of numbers")
    return array
