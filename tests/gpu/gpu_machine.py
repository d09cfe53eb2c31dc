"""The GPUs that the tests run on: the machine's own, else the fake ones, which are built here once with g++."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

FAKE = Path(__file__).parent / "fake_cuda"
_SOURCE = FAKE / "fake_cuda.cpp"


def has_gpu() -> bool:
    """Whether torch finds a GPU of this machine; asked in a process of its own, since torch asks once and remembers."""
    ask = [sys.executable, "-c", "import torch; raise SystemExit(not torch.cuda.is_available())"]
    return subprocess.run(ask, check=False, env=_without_fake()).returncode == 0


def _without_fake() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "FAKE_CUDA"}


def why_no_fake() -> str | None:
    """Why the fake devices cannot be had here, as a sentence; None where they can."""
    if find_spec("torch") is None:
        return "torch is not installed here"
    if sys.platform != "linux":
        return "there is no GPU here, and the fake CUDA devices are made for Linux"
    if shutil.which("g++") is None:
        return "there is no GPU here, and the fake CUDA devices are built with g++, which is not there; install g++"
    return None


def fake_cuda() -> dict[str, str]:
    """The environment in which whoever imports torch has two fake devices."""
    paths = os.pathsep.join(filter(None, (str(FAKE), os.environ.get("PYTHONPATH", ""))))
    return {"FAKE_CUDA": str(_library()), "PYTHONPATH": paths}


def _library() -> Path:
    """The compiled devices: built once for each torch and each text of the source."""
    spec = find_spec("torch")
    assert spec is not None and spec.origin is not None
    torch = Path(spec.origin).parent
    key = hashlib.sha256(_SOURCE.read_bytes() + f"{version('torch')} {torch}".encode()).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"tensordiff-fake-cuda-{os.getuid()}-{key}.so"
    if not library.exists():
        _build(library, torch)
    return library


def _build(library: Path, torch: Path) -> None:
    """Twenty seconds. Built beside and renamed, since another test process may do the same."""
    handle, made = tempfile.mkstemp(prefix="tensordiff-fake-cuda-")
    os.close(handle)
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-w", str(_SOURCE), f"-I{torch}/include",
               f"-I{torch}/include/torch/csrc/api/include", f"-L{torch}/lib", "-ltorch_cpu", "-lc10",
               f"-Wl,-rpath,{torch}/lib", "-o", made]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        Path(made).unlink()
        raise RuntimeError(f"{_SOURCE.name} does not compile with torch {version('torch')}:\n{done.stderr[-4000:]}")
    Path(made).rename(library)
