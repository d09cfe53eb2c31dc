"""The list of readers, and the example of docs/formats.md, which is run as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tensordiff.dump import open_dump
from tensordiff.dump.readers import READERS, SUFFIXES, readers
from tensordiff.errors import BadFile, NotADump
from tests.processes import run

ROOT = Path(__file__).parents[3]
FORMATS = (ROOT / "docs" / "formats.md").read_text()


def test_every_reader_of_the_list_is_there_and_in_the_docs() -> None:
    modules = [reader.__module__.removeprefix("tensordiff.dump.readers.") for reader in readers()]
    assert [name.removesuffix(".reader") for name in modules] == list(READERS)
    assert all(f"`{suffix}`" in FORMATS for suffix in SUFFIXES)


def test_readers_that_are_not_asked_are_not_imported() -> None:
    """The sample's candidate is of the first reader's format. Each of the others takes time to import."""
    code = "import sys; from tensordiff.dump import open_dump; open_dump({!r}); print(*sys.modules)"
    loaded = run([sys.executable, "-c", code.format("sample_dumps/candidate")], cwd=ROOT).stdout.split()
    assert "tensordiff.dump.readers.native" in loaded
    assert not [name for name in loaded if name.startswith("tensordiff.dump.readers.tools.")]


@pytest.fixture
def _example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the docs, in the list as the docs say."""
    blocks = re.findall(r"```python\n(.*?)```", FORMATS, re.DOTALL)
    [code] = [block for block in blocks if "def try_open" in block]
    module = ModuleType("tensordiff.dump.readers.f32")
    exec(compile(code, "docs/formats.md", "exec"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert '    "f32": (".f32",),\n' in blocks
    monkeypatch.setitem(READERS, "f32", (".f32",))


def f32(path: Path, *values: float) -> Path:
    path.write_bytes(len(values).to_bytes(4, "little") + np.array(values, "<f4").tobytes())
    return path


@pytest.mark.usefixtures("_example")
def test_the_example_of_the_docs(tmp_path: Path) -> None:
    f32(tmp_path / "mlp-output.f32", 1, 2, 3)
    f32(tmp_path / "mlp-input_0.f32", 4)
    dump = open_dump(tmp_path)
    assert (dump.format, dump.ordered) == ("f32", False)
    assert {(e.layer, e.port): e.read().tolist() for e in dump.entries} == {
        ("mlp", "output"): [1, 2, 3],
        ("mlp", "input_0"): [4],
    }
    assert open_dump(tmp_path / "mlp-output.f32").entries[0].spec.shape == (3,)


@pytest.mark.usefixtures("_example")
def test_the_example_refuses_a_truncated_file(tmp_path: Path) -> None:
    path = f32(tmp_path / "a.f32", 1, 2, 3)
    path.write_bytes(path.read_bytes()[:-1])
    [entry] = open_dump(path).entries
    with pytest.raises(BadFile, match="is truncated"):
        entry.read()


def test_without_its_line_it_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(NotADump, match="is not a tensor file we know"):
        open_dump(f32(tmp_path / "a.f32", 1))
