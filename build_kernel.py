"""Compile the measuring pass (``tensordiff/compare/measure/kernel``) by zig, or by the machine's own compiler.

``hatch_build.py`` calls this while a wheel is built or an editable install is made; ``python build_kernel.py`` compiles
in place, and ``--sanitize`` with the compiler's checks of memory and undefined behaviour.

zig comes as a Python package (``ziglang``) and needs no C library, so that one file serves every Python and, on Linux,
glibc and musl. ``TENSORDIFF_CC`` names another compiler, or ``none`` for an install without the compiled pass;
``TENSORDIFF_TARGET`` (a zig target such as aarch64-macos) compiles for another machine.
"""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

SOURCE = Path(__file__).parent / "tensordiff" / "compare" / "measure" / "kernel"
ZIG = "ziglang==0.17.0"
TARGETS = {  # of a zig target: what pip calls the machine
    "x86_64-linux": "manylinux_2_17_x86_64.musllinux_1_1_x86_64",
    "aarch64-linux": "manylinux_2_17_aarch64.musllinux_1_1_aarch64",
    "x86_64-macos": "macosx_11_0_x86_64",
    "aarch64-macos": "macosx_11_0_arm64",
    "x86_64-windows": "win_amd64",
}
_ZIG_MACHINES = {"x86_64", "amd64", "aarch64", "arm64"}  # for which there is a wheel of ziglang on every system
_FLAGS = ("-std=c11", "-fPIC", "-ffp-contract=fast", "-fno-math-errno", "-fvisibility=hidden")
_LEVELS = {"v1": "x86-64", "v3": "x86-64-v3", "v4": "x86-64-v4"}
_SANITIZE = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")


class NoKernel(Exception):
    """Why there is no compiled pass, as the end of a sentence."""


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C."""

    command: tuple[str, ...]
    is_zig: bool

    @classmethod
    def choose(cls) -> Compiler:
        """The one that the environment names; else zig; else the machine's own."""
        named = os.environ.get("TENSORDIFF_CC", "")
        if named == "none":
            raise NoKernel("it was installed with TENSORDIFF_CC=none")
        if named:
            return cls(tuple(shlex.split(named)), is_zig=False)
        if find_spec("ziglang") is not None:
            return cls((sys.executable, "-m", "ziglang", "cc"), is_zig=True)
        own = next(filter(None, map(shutil.which, ("cc", "clang", "gcc"))), None)
        if own is None:
            raise NoKernel("when it was installed there was no zig for this machine, nor cc, clang or gcc on PATH")
        return cls((own,), is_zig=False)


def is_named() -> bool:
    """Whether the environment names a compiler; its failure is then the build's."""
    return os.environ.get("TENSORDIFF_CC", "") not in ("", "none")


def wants_zig() -> bool:
    """Whether the build should fetch zig."""
    return platform.machine().lower() in _ZIG_MACHINES and not os.environ.get("TENSORDIFF_CC")


def this_machine() -> str:
    """The zig target of the machine at hand."""
    system = {"linux": "linux", "darwin": "macos", "win32": "windows"}.get(sys.platform, sys.platform)
    machine = platform.machine().lower()
    return f"{ {'amd64': 'x86_64', 'arm64': 'aarch64'}.get(machine, machine) }-{system}"


def wheel_tag(target: str, compiler: Compiler) -> str:
    """What pip calls the machines that the library runs on; what another compiler links is this machine's own."""
    own = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"py3-none-{TARGETS.get(target, own) if compiler.is_zig else own}"


def library_name(target: str) -> str:
    """The name of the library on a machine."""
    system = {"windows": "win32", "macos": "darwin"}.get(target.rpartition("-")[2], "linux")
    kernel = runpy.run_path(str(SOURCE / "__init__.py"))
    return str(kernel["LIBRARIES"].get(system, "kernel.so"))


def build(library: Path, target: str, compiler: Compiler, *, sanitize: bool = False) -> None:
    """Compile the library, and load it where that is possible: one that does not work is no library."""
    digest = runpy.run_path(str(SOURCE / "__init__.py"))["digest"]()
    _compile(library, target, compiler, [*_flags(target, compiler, sanitize), f'-DDIGEST="{digest}"'])
    if target == this_machine() and not sanitize:
        _try(library, digest)


def _flags(target: str, compiler: Compiler, sanitize: bool) -> list[str]:
    flags = [*_FLAGS, *(_SANITIZE if sanitize else ("-O3",))]
    if compiler.is_zig:
        flags += ["-target", target, "-fno-sanitize=undefined"]
    else:
        flags += ["-DHAS_LIBC", "-Wno-psabi"]
    return flags + (["-mno-stack-arg-probe"] if target.endswith("windows") else [])


def _compile(library: Path, target: str, compiler: Compiler, flags: list[str]) -> None:
    levels = _LEVELS if target.startswith("x86_64") else {"only": ""}
    with tempfile.TemporaryDirectory() as folder:

        def compiled(level: str) -> str:
            cpu, file = levels[level], f"{folder}/{level}.o"
            which = [f"-mcpu={cpu.replace('-', '_')}" if compiler.is_zig else f"-march={cpu}"] if cpu else []
            _run(compiler, [*flags, *which, f"-DLEVEL={level}", "-c", str(SOURCE / "pass.c"), "-o", file], folder)
            return file

        with ThreadPoolExecutor() as pool:
            objects = list(pool.map(compiled, levels))
        link = ["-fno-builtin", "-nostdlib", "-s"] if compiler.is_zig else []
        link += ["-mcpu=x86_64"] if compiler.is_zig and "v1" in levels else []
        _run(compiler, [*flags, *link, "-shared", *objects, str(SOURCE / "library.c"), "-o", str(library)], folder)


def _run(compiler: Compiler, arguments: list[str], folder: str) -> None:
    environ = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": folder, "ZIG_LOCAL_CACHE_DIR": folder}  # zig would want a home
    command = [*compiler.command, *arguments]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoKernel(f"the compiler {compiler.command[0]} could not be run: {error}") from error
    if done.returncode:
        raise NoKernel(f"its compiler failed: {shlex.join(command)}\n{done.stderr}")


def _try(library: Path, digest: str) -> None:
    """Load what was compiled, in a process of its own: it may be replaced while others have it loaded."""
    code = (
        "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).td_digest; f.restype = ctypes.c_char_p; print(f().decode())"
    )
    command = [sys.executable, "-c", code, str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.strip() != digest:
        raise NoKernel(f"what was compiled does not load: {done.stderr.strip() or done.stdout}")


def build_in_place(*, sanitize: bool = False, output: Path | None = None) -> Path:
    """Compile for this machine, beside the sources or elsewhere; replaced in one step, as others may have it loaded."""
    target, compiler = this_machine(), Compiler.choose()
    library = output or SOURCE / library_name(target)
    library.parent.mkdir(exist_ok=True)
    new = library.with_name(f"{library.name}.{os.getpid()}.new")
    try:
        build(new, target, compiler, sanitize=sanitize)
        new.replace(library)
    finally:
        new.unlink(missing_ok=True)
    return library


def main() -> None:
    """Compile for the machine at hand."""
    parser = argparse.ArgumentParser(description="Compile the measuring pass.")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UBSan")
    parser.add_argument("-o", "--output", type=Path, help="the library; by default beside its sources")
    given = parser.parse_args()
    try:
        print(build_in_place(sanitize=given.sanitize, output=given.output))
    except NoKernel as error:
        sys.exit(f"no compiled pass: {error}")


if __name__ == "__main__":
    main()
