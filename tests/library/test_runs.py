"""``tensordiff.capture`` and ``tensordiff.inject``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tensordiff
from tensordiff.capture.settings import Settings
from tensordiff.errors import CaptureError, WriteError
from tensordiff.library.run_options import RunOptions
from tests import processes
from tests.capture.models import SMALL, script
from tests.library.captures import captured
from tests.making import SAMPLES


def test_options_of_sources_are_the_settings() -> None:
    of_capture = {"layers", "leaves", "no_inputs", "max_bytes", "force", "inject"}
    assert set(RunOptions.__annotations__) == set(Settings.__dataclass_fields__) - of_capture


def test_a_source_is_captured_and_injected(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = script(tmp_path, SMALL)
    reference = captured(f"py:{file}:good", tmp_path / "ref")
    candidate = captured(f"py:{file}:bad", tmp_path / "cand", seed=0)
    assert reference.entries == len(reference.dump().entries) > 0
    for which in (f"py:{file}:bad", candidate):
        injected = tensordiff.inject(which, reference, tmp_path / "injected", overwrite=True)
        found = tensordiff.compare(reference, candidate, injected=injected)
        assert found.culprit is not None and found.culprit.injected is not None


def test_a_dump_is_not_written_over(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = f"py:{script(tmp_path, SMALL)}:good"
    captured(source, tmp_path / "d")
    with pytest.raises(WriteError, match="holds a dump already; give a new folder, or overwrite=True"):
        tensordiff.capture(source, tmp_path / "d")
    few = captured(source, tmp_path / "d", overwrite=True, inputs=False)
    assert not any(entry.is_input for entry in few.dump().entries)


def test_what_is_no_source() -> None:
    with pytest.raises(CaptureError, match=r"^model/: is not a source; write hf:PATH_OR_ID, "):
        tensordiff.capture("model/", "d")


def test_a_dump_of_a_stranger_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="cannot be run again"):
        tensordiff.inject(SAMPLES / "candidate", SAMPLES / "reference", tmp_path / "d")


def test_options_of_sources_are_refused_of_a_model(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="of a model takes no 'prompt'"):
        tensordiff.capture(torch.nn.Linear(2, 2), tmp_path / "d", prompt="a")


def test_without_torch_there_is_a_way_out(tmp_path: Path) -> None:
    block = "import sys\nsys.path_importer_cache.clear()\nimport importlib.util as u\nreal = u.find_spec\n"
    block += "u.find_spec = lambda name, *rest: None if name == 'torch' else real(name, *rest)\n"
    script = f"{block}import tensordiff\ntensordiff.capture(object(), {str(tmp_path / 'd')!r})"
    done = processes.run([sys.executable, "-c", script])
    assert "CaptureError: tensordiff.capture of a model needs torch" in done.stderr
    assert "pip install 'tensordiff[torch]'" in done.stderr
