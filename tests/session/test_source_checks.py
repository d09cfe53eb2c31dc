"""What is refused before anything is run: the first side leaves no dump."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.settings import Settings
from tensordiff.errors import TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.source_checks import check_sources
from tensordiff.session.sources import Sources
from tests.making import numbers, write

MODEL = """
from other import helper
from torch import nn

def load():
    return nn.Linear(2, 2)

class Maker:
    def inner(self): ...

made = Maker().inner
def _private(): ...
"""


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "port.py").write_text(MODEL)
    return Request(Path("py:port.py:load"), Path("py:port.py:load"))


def check(request: Request) -> None:
    check_sources(Sources.of(request))


@pytest.mark.parametrize("function", ["load", "helper", "made", "_private"])
def test_what_may_be_there_passes(request_: Request, function: str) -> None:
    check(replace(request_, candidate=Path(f"py:port.py:{function}")))


def test_a_file_that_cannot_be_read_as_python_is_left_to_the_engine(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text("def load(:")
    check(replace(request_, candidate=Path("py:new.py:load")))
    (tmp_path / "star.py").write_text("from port import *")
    check(replace(request_, candidate=Path("py:star.py:load")))


@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        ("py:nope.py:load", r"^py:nope.py:load: there is no such file; write py:FILE.py:FUNCTION$"),
        ("py:port.py:laod", r"^port.py: has no function laod; there are: load$"),
        ("onnx:nope.onnx", r"^onnx:nope.onnx: there is no such file; write onnx:FILE$"),
        ("llamacpp:nope.gguf", r"^llamacpp:nope.gguf: there is no such file; write llamacpp:FILE.gguf$"),
        ("hf:./nope", r"^hf:./nope: there is no such folder; give a folder with config.json, or the id of a model"),
        ("hf:port.py", r"^hf:port.py: is a file; give a folder with config.json, or the id of a model on the hub$"),
        ("vllm:a.gguf", r"^vllm:a.gguf: is a file; give a folder with .* on the hub; llamacpp:a.gguf runs it$"),
        ("mlx:a.gguf", r"^mlx:a.gguf: is a file; give a folder"),
        ("nope/dump", r"^nope/dump: no such file or folder; check the path$"),
        ("port.py", r"^port.py: "),
    ],
)
def test_a_side_that_is_not_there(request_: Request, candidate: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(TensordiffError, match=sentence):
        check(replace(request_, candidate=Path(candidate)))
    with pytest.raises(TensordiffError, match=sentence):
        check(replace(request_, reference=Path(candidate)))


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (Settings(input_ids=(1, 2)), "--input-ids"),
        (Settings(steps=2), "--steps"),
        (Settings(dtype="bfloat16"), "--dtype"),
        (Settings(device="gpu"), "--device"),
        (Settings(python="/usr/bin/python3"), "--python"),
    ],
)
def test_options_of_sources_are_refused_beside_two_dumps(tmp_path: Path, settings: Settings, name: str) -> None:
    dump = write(tmp_path / "dump", {"a": numbers(2)})
    told = (
        rf"^{name} is an option of sources, and neither side is one; leave it out, or give a source such as hf:MODEL$"
    )
    for request in (
        Request(dump, dump, settings=settings),
        Request(dump, dump, candidate_settings=settings),
    ):
        with pytest.raises(TensordiffError, match=told):
            check(request)


def test_a_dump_may_be_run_again_in_the_interpreter_that_the_user_gives(tmp_path: Path) -> None:
    dump = write(tmp_path / "dump", {"a": numbers(2)})
    given = Settings(python="/usr/bin/python3", trust_remote_code=True)
    check_sources(Sources.of(Request(dump, dump, settings=given)), reruns=True)
    with pytest.raises(TensordiffError, match=r"^--dtype is an option of sources"):
        check_sources(Sources.of(Request(dump, dump, settings=replace(given, dtype="float16"))), reruns=True)


def test_the_device_of_a_candidate_that_is_a_dump(request_: Request, tmp_path: Path) -> None:
    dump = write(tmp_path / "dump", {"a": numbers(2)})
    with pytest.raises(TensordiffError, match=r"^--candidate-device: the candidate is a dump, and is not run"):
        check(replace(request_, candidate=dump, candidate_settings=Settings(device="gpu")))
    check(replace(request_, candidate=dump, candidate_settings=Settings()))


def test_a_model_that_neither_the_hub_nor_its_cache_has(
    request_: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(
        TensordiffError, match=r"^hf:some/nope: is not a folder here, and is not available on the hub \(it cann"
    ):
        check(replace(request_, candidate=Path("hf:some/nope")))
    check(Request(Path("hf:some/nope"), Path("py:port.py:load")))  # it is run first, and says it itself
    snapshot = tmp_path / "hub" / "models--some--nope" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("1")
    check(replace(request_, candidate=Path("hf:some/nope")))


def test_an_engine_whose_packages_are_not_there(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    python = tmp_path / "python"  # an interpreter without packages
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    request = Request(Path("llamacpp:model.gguf"), request_.candidate, settings=Settings(python=str(python)))
    with pytest.raises(
        TensordiffError, match=rf"^{python}: has no numpy and no .* xllamacpp; make its environment with"
    ):
        check(request)


@pytest.mark.parametrize("option", ["rules", "tolerances", "session", "golden", "injected"])
def test_a_file_beside_the_sides_that_is_not_there(request_: Request, option: str) -> None:
    missing: dict[str, Any] = {option: Path("nope.toml")}
    with pytest.raises(TensordiffError, match=r"^nope.toml: "):
        check(replace(request_, **missing))


def test_two_dumps_are_left_to_opening(tmp_path: Path) -> None:
    dump = write(tmp_path / "a", {"a": numbers(2)})
    check(Request(dump, tmp_path / "nope"))
