"""Compiled code kept on disk, so that only the first process on a machine waits for the compiler.

numba has a cache of its own. It is not used, because it believes what it finds: its files are pickles and machine code,
looked for beside the source, where a shared install may let others write, or wherever a ``.numba_config.yaml`` in the
current folder says; a damaged file, a full disk or a folder that cannot be written ends in a traceback; and code that
was compiled from another module is not compiled again when that module changes.

Here a file lies in a folder of this user's own (``OwnFolder``) and begins with a hash of the rest, so that a damaged
one is never unpickled. Its name is a hash of all that the code was made from: sources, versions, processor, types.
Whatever goes wrong, the code is compiled again. The only module that touches numba's internals.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps
from platformdirs import user_cache_path

from tensordiff.util.own_folder import OwnFolder

_SOURCES = ("diff.py", "intrinsics.py", "kernels.py", "metrics.py")
_HASH_BYTES = hashlib.sha256().digest_size

config._config_fname = ""  # numba looks for it in the current folder whenever it compiles, and that may be a stranger's


def cached(function: Any) -> Any:
    """A compiled function that finds its machine code on disk, and puts it there."""
    if _digest_of_sources() is None:
        return function
    function._cache = _KernelCache(function.py_func.__name__, OwnFolder(cache_folder()))
    return function


def cache_folder() -> Path:
    """Where compiled code is kept; it may be deleted at any time."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    return Path(given, "tensordiff") if given else user_cache_path("tensordiff", appauthor=False) / "kernels"


@cache
def _digest_of_sources() -> bytes | None:
    """A hash of everything compiled code depends on beside its types; None where sources cannot be read."""
    digest = hashlib.sha256("\n".join((numba.__version__, llvmlite.__version__, sys.version)).encode())
    try:
        for name in _SOURCES:
            digest.update(hashlib.sha256(Path(__file__).with_name(name).read_bytes()).digest())
    except OSError:
        return None
    return digest.digest()


class _KernelCache(NullCache):  # type: ignore[misc]
    """What numba asks for code that was compiled before: one function's files."""

    def __init__(self, function: str, folder: OwnFolder) -> None:
        self.function, self.folder = function, folder

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The machine code for these types; None where there is none, or it is damaged."""
        target_context.refresh()
        content = self.folder.read(self._name(sig, target_context.codegen()))
        if content is None:
            return None
        digest, code = content[:_HASH_BYTES], content[_HASH_BYTES:]
        if hashlib.sha256(code).digest() != digest:
            return None
        return CompileResult._rebuild(target_context, *pickle.loads(code))  # noqa: S301 - ours, and unchanged

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Keep machine code; where that fails, the next process compiles it again."""
        code = dumps(cres._reduce())
        self.folder.write(self._name(sig, cres.codegen), hashlib.sha256(code).digest() + code)

    def _name(self, sig: Any, codegen: Any) -> str:
        made_from = repr((self.function, sig, codegen.magic_tuple())).encode()
        digest = hashlib.sha256((_digest_of_sources() or b"") + made_from).hexdigest()
        return f"{self.function}-{digest[:32]}"
