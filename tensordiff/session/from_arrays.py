"""Sessions for code that calls tensordiff: each side a dump on disk or arrays in memory.

Arrays are numpy's, or anything that numpy can make one of; a torch tensor is one by ``.detach().cpu()``, and no
framework is imported. Everything else about the session is as ``Session.open`` has it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tensordiff.compare.limits import Limits
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import MemoryTensor, entry
from tensordiff.errors import TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.sources import refuse_source
from tensordiff.session.third_dumps import ThirdDumps

PathLike = str | os.PathLike[str]
Arrays = Mapping[str, Any]
"""Arrays by name, in the order they were computed."""


def session_of(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    golden: PathLike | Arrays | None = None,
    injected: PathLike | Arrays | None = None,
    rules: PathLike | None = None,
    tolerances: PathLike | None = None,
    limits: Limits | None = None,
    step: int | None = None,
    only: str | None = None,
    min_coverage: float = 50.0,
    allow_partial: bool = False,
    learn: bool = True,
) -> Session:
    """A session of dumps, of arrays, or of some of each."""
    request = Request(
        _path(reference) or Path("reference"),
        _path(candidate) or Path("candidate"),
        golden=_path(golden),
        injected=_path(injected),
        rules=_path(rules),
        tolerances=_path(tolerances),
        limits=limits or Limits(),
        step=step,
        only=only,
        min_coverage=min_coverage,
        allow_partial=allow_partial,
        learn=learn,
    )
    third_dumps = ThirdDumps(
        injected=None if injected is None else _dump("injected", injected),
        golden=None if golden is None else _dump("golden", golden),
    )
    return Session.of_dumps(request, _dump("reference", reference), _dump("candidate", candidate), third_dumps)


def dump_of_arrays(name: str, arrays: Arrays) -> Dump:
    """Arrays as a dump; ``name`` stands where a dump on disk has its path."""
    entries = tuple(entry(key, MemoryTensor(_array(key, value))) for key, value in arrays.items())
    return Dump(Path(name), "arrays", entries, ordered=True).with_fit_names()


def _path(given: PathLike | Arrays | None) -> Path | None:
    return None if given is None or isinstance(given, Mapping) else Path(given)


def _dump(name: str, given: PathLike | Arrays) -> Dump:
    if isinstance(given, Mapping):
        return dump_of_arrays(name, given)
    refuse_source(Path(given))
    return open_dump(given)


def _array(name: str, value: Any) -> Array:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # numpy has no such type; its bits are those of an int16
            return np.asarray(value.view(value.new_empty(0).short().dtype)).view(ml_dtypes.bfloat16)
    array = np.asarray(value)
    if array.dtype.kind not in "biufcV":
        raise TensordiffError(f"{name!r}: holds {array.dtype}, which are no numbers; give arrays by name")
    return array
