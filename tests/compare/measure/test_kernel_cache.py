"""Compiled code on disk: believed only where it is ours and undamaged, and never needed."""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mounts import on_small_disk, read_only
from tests.processes import run

HASH_BYTES = hashlib.sha256().digest_size
PACKAGE = Path(__file__).parents[3] / "tensordiff"
_SCRIPT = """
import numpy as np
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.measure.scheduler import has_kernels
diff = measure(np.arange(6.0), np.arange(6.0) + 1, compiled=True)
print(has_kernels(), diff.max_abs, diff.outside)
"""
MEASURE = (sys.executable, "-W", "error", "-c", _SCRIPT)


def environment(cache: Path) -> dict[str, str]:
    return {**os.environ, "HOME": str(cache), "XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(PACKAGE.parent)}


class Planted:
    """A pickle that leaves a trace when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from tensordiff.compare.measure import kernel_cache

    monkeypatch.setattr(kernel_cache, "cache_folder", lambda: tmp_path / "kernels")
    return tmp_path / "kernels"


def twice() -> Any:
    """A small function as the kernels are compiled and cached; each call makes it as a new process would."""
    from numba import njit

    from tensordiff.compare.measure.kernel_cache import cached

    def double(value: float) -> float:
        return value * 2

    return cached(njit(double))


def test_code_is_compiled_once(folder: Path) -> None:
    import numba

    function = twice()
    assert not isinstance(function._cache, numba.core.caching.FunctionCache)
    assert function(21.0) == 42.0
    [file] = folder.iterdir()
    before = file.stat().st_mtime_ns
    assert twice()(21.0) == 42.0
    assert file.stat().st_mtime_ns == before  # loaded, or it would have been written again


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "short": lambda content: content[: HASH_BYTES // 2],
    "truncated": lambda content: content[: len(content) // 2],
    "garbage": lambda content: b"\x80garbage" * 100,
    "one bit": lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_compiled_again(folder: Path, damage: str) -> None:
    twice()(21.0)
    [file] = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[damage](whole))
    assert twice()(21.0) == 42.0
    assert file.read_bytes()[:HASH_BYTES] == hashlib.sha256(file.read_bytes()[HASH_BYTES:]).digest()
    assert len(file.read_bytes()) == len(whole)


def test_a_pickle_is_not_loaded_where_others_may_write(folder: Path, tmp_path: Path) -> None:
    """Not even one with a good hash, which anybody can compute."""
    twice()(21.0)
    [file] = folder.iterdir()
    evil = pickle.dumps(Planted(tmp_path / "trace"))
    file.write_bytes(hashlib.sha256(evil).digest() + evil)
    folder.chmod(0o777)
    assert twice()(21.0) == 42.0
    assert not (tmp_path / "trace").exists()


def test_a_change_of_any_source_needs_new_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a module whose functions are compiled into those of another."""
    from tensordiff.compare.measure import kernel_cache

    assert set(kernel_cache._SOURCES) >= {"kernels.py", "metrics.py", "intrinsics.py", "diff.py"}
    twice()(21.0)
    monkeypatch.setattr(kernel_cache, "_digest_of_sources", lambda: b"another")
    twice()(21.0)
    assert len(list(folder.iterdir())) == 2


def test_a_read_only_install_and_no_cache(tmp_path: Path) -> None:
    done = run(read_only(MEASURE, tmp_path, PACKAGE), env=environment(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 1.0 6\n", "")


def test_a_cache_on_a_full_disk(tmp_path: Path) -> None:
    done = run(on_small_disk(MEASURE, tmp_path, "64k"), env=environment(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True 1.0 6\n", "")


@pytest.mark.parametrize("settings", ["cache_dir: planted", "disable_jit: 1", "- [broken"])
def test_settings_of_numba_in_the_current_folder_are_not_obeyed(tmp_path: Path, settings: str) -> None:
    (tmp_path / ".numba_config.yaml").write_text(settings)
    done = run(MEASURE, env=environment(tmp_path), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False 1.0 6\n", "")
    assert not (tmp_path / "planted").exists()


def test_a_person_may_switch_the_compiler_off(tmp_path: Path) -> None:
    done = run(MEASURE, env=environment(tmp_path) | {"NUMBA_DISABLE_JIT": "1"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "False 1.0 6\n", "")
