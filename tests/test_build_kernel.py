"""The build of the measuring pass: its compiler, what is said where there is none, and what such an install does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import numpy as np
import pytest

import build_kernel
from build_kernel import Compiler, NoKernel
from tensordiff.compare.measure import kernel
from tests.making import SAMPLES
from tests.processes import run
from tests.weights.making import write_npz


@pytest.fixture(autouse=True)
def _no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENSORDIFF_CC", raising=False)


def _without_zig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_kernel, "find_spec", lambda name: None)


def test_the_named_compiler_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORDIFF_CC", "ccache gcc")
    assert Compiler.choose() == Compiler(("ccache", "gcc"), is_zig=False)
    assert not build_kernel.wants_zig()


def test_then_zig_then_the_machine_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_kernel, "find_spec", lambda name: object())
    assert Compiler.choose().is_zig
    _without_zig(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: f"/somewhere/{name}" if name == "clang" else None)
    assert Compiler.choose() == Compiler(("/somewhere/clang",), is_zig=False)


def test_a_sentence_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_zig(monkeypatch)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(NoKernel, match="no zig for this machine, nor cc, clang or gcc on PATH"):
        Compiler.choose()
    monkeypatch.setenv("TENSORDIFF_CC", "none")
    with pytest.raises(NoKernel, match="TENSORDIFF_CC=none"):
        Compiler.choose()


@pytest.mark.parametrize(
    ("command", "sentence"), [("/nowhere/cc", "could not be run"), ("false", "its compiler failed: false ")]
)
def test_a_compiler_that_fails(command: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORDIFF_CC", command)
    with pytest.raises(NoKernel, match=sentence):
        build_kernel.build_in_place(output=tmp_path / "kernel.so")
    assert not list(tmp_path.iterdir())


def test_what_does_not_load_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that succeeds and leaves something else."""
    broken = tmp_path / "cc"
    broken.write_text('#!/bin/sh\nfor last; do :; done\necho nothing > "$last"\n')
    broken.chmod(0o755)
    monkeypatch.setenv("TENSORDIFF_CC", str(broken))
    with pytest.raises(NoKernel, match="what was compiled does not load"):
        build_kernel.build_in_place(output=tmp_path / "kernel.so")
    assert list(tmp_path.iterdir()) == [broken]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_machine_s_own_compiler_makes_a_library_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORDIFF_CC", "cc -O0")
    made = build_kernel.build_in_place(output=tmp_path / "kernel.so")
    code = "from tensordiff.compare.measure import kernel; print(kernel.why_missing())"
    done = run([sys.executable, "-c", code], env=os.environ | {"TENSORDIFF_KERNEL": str(made)})
    assert done.stdout == "None\n"


def test_every_target_has_a_library_name_and_a_tag() -> None:
    zig = Compiler(("zig",), is_zig=True)
    names = {target: build_kernel.library_name(target) for target in build_kernel.TARGETS}
    assert names["x86_64-windows"] == "kernel.dll" and names["aarch64-macos"] == "kernel.dylib"
    assert build_kernel.wheel_tag("aarch64-linux", zig) == "py3-none-manylinux_2_17_aarch64.musllinux_1_1_aarch64"
    makefile = (Path(build_kernel.__file__).parent / "Makefile").read_text()
    assert f"TARGETS := {' '.join(build_kernel.TARGETS)}\n" in makefile


ROOT = Path(build_kernel.__file__).parent


@pytest.mark.parametrize("compiler", ["/nowhere/cc", "false"])
@pytest.mark.parametrize("version", ["standard", "editable"])
def test_a_named_compiler_that_fails_fails_the_install(
    compiler: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pip calls it: what it left of an earlier build stays as it was."""
    pytest.importorskip("hatchling")
    before = kernel.LIBRARY.read_bytes() if kernel.LIBRARY.exists() else None
    make = "build_editable" if version == "editable" else "build_wheel"
    code = f"import sys; from hatchling.build import {make}; {make}(sys.argv[1])"
    monkeypatch.setenv("TENSORDIFF_CC", compiler)
    done = run([sys.executable, "-c", code, tmp_path], cwd=ROOT)
    said = "as the compiler that TENSORDIFF_CC names does not compile its measuring pass; name another, or "
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert compiler in done.stderr and not list(tmp_path.glob("*.whl"))
    assert (kernel.LIBRARY.read_bytes() if kernel.LIBRARY.exists() else None) == before


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
@pytest.mark.parametrize(
    ("named", "works", "tried"),
    [
        ("", "", [""]),
        ("", "cc", ["", "cc"]),
        ("", "none", ["", "cc", "none"]),
        ("", "nothing", ["", "cc", "none"]),
        ("tcc", "tcc", ["tcc"]),
        ("tcc", "cc", ["tcc"]),
    ],
)
def test_make_tries_other_compilers_unless_one_is_named(
    named: str, works: str, tried: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a pip that only one of the compilers satisfies."""
    pip = tmp_path / "pip"
    pip.write_text(f'#!/bin/sh\necho "tried $TENSORDIFF_CC."\ntest "$TENSORDIFF_CC" = "{works}"\n')
    pip.chmod(0o755)
    monkeypatch.setenv("TENSORDIFF_CC", named)
    done = run(["make", "-s", f"VENV={tmp_path}", f"PIP={pip}", "PYTHON=true", tmp_path / ".core"], cwd=ROOT)
    assert done.stdout.splitlines()[1:] == [f"tried {compiler}." for compiler in tried], done.stderr
    assert (done.returncode == 0) is (tmp_path / ".core").exists() is (works == tried[-1])
    assert ["(TENSORDIFF_CC=" in line for line in done.stderr.splitlines()].count(True) == len(tried) - 1


# --- an install without it ----------------------------------------------------------------------------


_NOTICE = "tensordiff measures in numpy here, right but many times slower: "


def _without(library: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, *arguments], env=os.environ | {"TENSORDIFF_KERNEL": str(library)})


def _compare_without(library: Path) -> subprocess.CompletedProcess[str]:
    return _without(library, "-m", "tensordiff", "compare", SAMPLES / "reference", SAMPLES / "candidate")


def test_commands_say_it_once_and_find_the_same(tmp_path: Path) -> None:
    done = _compare_without(tmp_path / "none.so")
    [line] = done.stderr.splitlines()
    assert line.startswith(_NOTICE)
    assert done.returncode == 1 and "verdict: diverges, first at layers.1.mlp.act_fn" in done.stdout
    if kernel.why_missing() is None:
        assert _compare_without(kernel.LIBRARY).stderr == ""


def test_weights_say_it_too(tmp_path: Path) -> None:
    file = write_npz({"layers.0.mlp.weight": np.ones((4, 4), np.float32)}, tmp_path / "model.npz")
    for command in ("weights", "compare"):
        done = _without(tmp_path / "none.so", "-m", "tensordiff", command, file, file)
        assert done.stderr.startswith(_NOTICE) and done.stderr.count("\n") == 1, done.stderr


def test_tolerances_say_it_once_for_several_pairs(tmp_path: Path) -> None:
    sides = [SAMPLES / "reference", SAMPLES / "max"] * 2
    [line] = _without(tmp_path / "none.so", "-m", "tensordiff", "tolerances", *sides).stderr.splitlines()
    assert line.startswith(_NOTICE)


_TWICE = """
import tensordiff
def compare():
    return tensordiff.compare({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]})  # this line
assert compare().verdict == compare().verdict == "agrees"
"""


def test_the_library_warns_once_at_the_caller_s_line(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(_TWICE)
    done = _without(tmp_path / "none.so", script)
    told, line = done.stderr.splitlines()
    assert told.startswith(f"{script}:4: RuntimeWarning: {_NOTICE}") and line.endswith("# this line")
    strict = _without(tmp_path / "none.so", "-W", "error", script)
    assert strict.returncode == 1 and f"RuntimeWarning: {_NOTICE}" in strict.stderr


def test_tests_whose_warnings_are_errors_do_not_fail(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (tmp_path / "test_it.py").write_text(f"def test_it():\n{indent(_TWICE, '    ')}")
    done = _without(tmp_path / "none.so", "-m", "pytest", "-q", "-p", "no:cacheprovider", tmp_path)
    assert done.returncode == 0 and "1 passed, 1 warning" in done.stdout, done.stdout


def test_the_reason_that_the_build_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "no_kernel.txt").write_text("its compiler failed: cc -O3\nand all that it said\n")
    monkeypatch.setattr(kernel, "REASON", tmp_path / "no_kernel.txt")
    assert kernel._reason() == "its compiler failed: cc -O3"
