"""Who may import whom: held by import-linter, and by asking real processes what they loaded."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import processes

ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "sample_dumps"
FRAMEWORKS = ("torch", "transformers", "max", "onnxruntime", "safetensors")
FACES = ("textual", "rich")

RUN = """
import sys
from tensordiff.cli.main import run
sys.argv = ["tensordiff", *{args!r}]
try:
    run()
except SystemExit as left:
    print(left.code, *sorted({{name.partition(".")[0] for name in sys.modules}}), file=sys.stderr)
"""
BLOCK = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(name + " is not to be had")
sys.meta_path.insert(0, Refuse())
"""


def python(script: str) -> list[str]:
    """Run a script; the words of its last line on stderr."""
    done = processes.run([sys.executable, "-c", script], check=True, cwd=ROOT)
    return done.stderr.splitlines()[-1].split()


def loaded(*args: str) -> tuple[int, set[str]]:
    """The status of a command, and the packages it loaded."""
    status, *names = python(RUN.format(args=args))
    return int(status), set(names)


COMPARE = ("compare", str(SAMPLES / "reference"), str(SAMPLES / "candidate"))


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (COMPARE, 1),
        (("compare", str(SAMPLES / "reference"), str(SAMPLES / "max"), "--json"), 0),
        (("lint", str(SAMPLES / "reference"), str(SAMPLES / "max")), 0),
        (("inspect", str(SAMPLES / "golden"), "--stats"), 0),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_commands_on_dumps_load_no_framework_and_no_face(args: tuple[str, ...], status: int) -> None:
    found, names = loaded(*args)
    assert found == status
    assert "numpy" in names
    assert not names.intersection(FRAMEWORKS + FACES)


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("nope",)])
def test_help_loads_nothing_heavy(args: tuple[str, ...]) -> None:
    _, names = loaded(*args)
    assert "click" in names
    assert not names.intersection(("numpy", "ml_dtypes", *FRAMEWORKS, *FACES))


def test_compare_works_where_no_framework_can_be_imported() -> None:
    script = BLOCK.format(blocked=FRAMEWORKS + FACES) + RUN.format(args=COMPARE)
    assert python(script)[0] == "1"


def test_the_block_blocks() -> None:
    script = (
        BLOCK.format(blocked=("torch",)) + "\ntry:\n import torch\nexcept ImportError as e: print(e, file=sys.stderr)"
    )
    assert python(script) == ["torch", "is", "not", "to", "be", "had"]


def test_import_linter_s_contracts_hold() -> None:
    code = "from importlinter.cli import lint_imports_command as lint; lint()"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = processes.run([sys.executable, "-c", code, "--no-cache"], cwd=ROOT, env=env)
    assert done.returncode == 0, done.stdout
    assert " kept, 0 broken" in done.stdout


WRITERS = {
    "util/atomic_write.py": "what all others use",
    "util/user_key.py": "the key, which is made exclusively and never replaced",
    "dump/native/shards.py": "shards and the journal grow while a model runs; made exclusively",
    "compare/cluster/packing.py": "a pickle in memory, for the workers of a cluster",
    "util/remote/ranges.py": "large tensors of a store while they are read, in a file that has no name",
    "capture/child.py": "the log, which has no name",
    "capture/process/child_main.py": "a pipe that the parent made",
    "capture/process/stream_writer.py": "two numbers in a private folder, which both processes of a stream look at",
    "util/temporary_folders.py": "the lock of a private folder in shared memory",
}
"""The modules that open files for writing, and why they do so themselves."""


def test_every_file_is_written_by_the_module_for_that() -> None:
    found = {
        str(path.relative_to(ROOT / "tensordiff")): line
        for path in (ROOT / "tensordiff").rglob("*.py")
        for line in _writing_lines(ast.parse(path.read_text()))
    }
    assert set(found) == set(WRITERS), found


def _writing_lines(tree: ast.Module) -> Iterator[int]:
    """Where a module opens something for writing, or has a library write to a path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            if name in ("open", "fdopen") and any(set(word) & set("wax+") and len(word) < 4 for word in words):
                yield node.lineno
            flags = {part.attr for arg in node.args for part in ast.walk(arg) if isinstance(part, ast.Attribute)}
            if name == "open" and flags & {"O_WRONLY", "O_RDWR", "O_CREAT"} and "devnull" not in flags:
                yield node.lineno
            if name in ("write_text", "write_bytes", "TemporaryFile", "NamedTemporaryFile", "mkstemp", "touch"):
                yield node.lineno
            if name in ("save", "savez", "savefig", "save_file", "save_model", "dump") and not _is_ours(node):
                yield node.lineno


def _is_ours(node: ast.Call) -> bool:
    """Whether a ``save`` is a function of ours, or one that is given a file that is open already."""
    return isinstance(node.func, ast.Name) or not isinstance(node.func, ast.Attribute) or _writes_to_memory(node)


def _writes_to_memory(node: ast.Call) -> bool:
    return any(isinstance(arg, ast.Name) and arg.id in ("out", "file") for arg in node.args)


def test_only_the_command_line_writes_to_the_standard_streams() -> None:
    files = [path for path in (ROOT / "tensordiff").rglob("*.py") if "cli" not in path.parts]
    assert len(files) > 20
    assert [path for path in files if "sys.std" in path.read_text()] == []
