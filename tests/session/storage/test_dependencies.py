"""What a result depends on: everything that is read or run, and what nobody can see."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tensordiff.capture.settings import Injection, Settings
from tensordiff.session.request import Request
from tensordiff.session.storage.dependencies import Dependencies, dependencies_of
from tests.cli.commands.test_verify_suite import keeping_times


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, a graph, and files that settings name."""
    (tmp_path / "model").mkdir()
    for name in ("model/config.json", "model/weights.safetensors", "prompt.txt", "in.safetensors", "image.png"):
        (tmp_path / name).write_text("1")
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph/net.onnx").write_text("1")
    (tmp_path / "graph/net.onnx.data").write_text("1")
    (tmp_path / "dump.npy").write_text("1")
    return tmp_path


def of(folder: Path, candidate: str, settings: Settings | None = None, **more: object) -> Dependencies:
    request = Request(folder / "dump.npy", Path(candidate), settings=settings or Settings(), **more)  # type: ignore[arg-type]
    return dependencies_of(request)


def settings_of(folder: Path) -> Settings:
    return Settings(
        prompt_file=str(folder / "prompt.txt"), inputs=str(folder / "in.safetensors"), image=str(folder / "image.png"),
        inject=Injection(str(folder / "model"), rules=str(folder / "prompt.txt")),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("model/config.json", "the candidate"),
        ("model/weights.safetensors", "the candidate"),
        ("prompt.txt", "--prompt-file of the reference"),
        ("in.safetensors", "--inputs of the reference"),
        ("image.png", "--image of the reference"),
        ("dump.npy", "the reference"),
    ],
)
def test_every_file_that_is_read(folder: Path, file: str, label: str) -> None:
    source = f"hf:{folder / 'model'}"
    before = of(folder, source, settings_of(folder))
    assert of(folder, source, settings_of(folder)).changed(before.states) == ""
    assert before.doubts == ()
    keeping_times(folder / file, b"2")
    assert of(folder, source, settings_of(folder)).changed(before.states) == label


def test_a_file_that_appears_or_goes(folder: Path) -> None:
    source = f"hf:{folder / 'model'}"
    before = of(folder, source)
    (folder / "model/generation_config.json").write_text("{}")
    assert of(folder, source).changed(before.states) == "the candidate"
    (folder / "model/generation_config.json").unlink()
    assert of(folder, source).changed(before.states) == ""


def test_what_lies_beside_a_graph(folder: Path) -> None:
    source = f"onnx:{folder / 'graph/net.onnx'}"
    before = of(folder, source)
    keeping_times(folder / "graph/net.onnx.data", b"2")
    assert of(folder, source).changed(before.states) == "the candidate"


def test_what_is_written_counts_nowhere(folder: Path) -> None:
    request = Request(folder / "dump.npy", Path(f"onnx:{folder / 'graph/net.onnx'}"))
    before = dependencies_of(request, output=folder / "graph/out")
    (folder / "graph/out").mkdir()
    (folder / "graph/out/report.json").write_text("{}")
    assert dependencies_of(request, output=folder / "graph/out").changed(before.states) == ""
    assert dependencies_of(request).changed(before.states) == "the candidate"


def test_variables_that_change_numbers_and_others(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"hf:{folder / 'model'}"
    before = of(folder, source)
    monkeypatch.setenv("SSH_TTY", "/dev/pts/9")
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert of(folder, source).changed(before.states) == ""
    monkeypatch.setenv("OMP_NUM_THREADS", "77")
    after = of(folder, source)
    assert after.changed(before.states) == before.changed(after.states) == "the environment variable OMP_NUM_THREADS"
    assert of(folder, str(folder / "dump.npy")).changed({}) == "what was asked for"
    assert not any("environment" in label for label in of(folder, str(folder / "dump.npy")).states)


def test_the_packages_of_another_interpreter(folder: Path) -> None:
    python, said = folder / "python", folder / "packages"
    python.write_text(f"#!/bin/sh\ncat {said}\n")
    python.chmod(0o755)
    said.write_text("torch 2.12.0\n")
    settings, source = Settings(python=str(python)), f"hf:{folder / 'model'}"
    before = of(folder, source, settings)
    assert before.doubts == ()
    said.write_text("torch 2.13.0\n")
    assert of(folder, source, settings).changed(before.states) == f"the packages of {python}"
    python.write_text("#!/bin/sh\nexit 3\n")
    assert of(folder, source, settings).doubts == (f"{python} does not say which packages it has",)


def test_the_packages_of_a_real_interpreter(folder: Path) -> None:
    made = of(folder, f"hf:{folder / 'model'}", Settings(python=sys.executable))
    assert made.doubts == ()
    assert made.states[f"the packages of {sys.executable}"] != "unknown"


def test_nothing_of_the_current_folder_runs_when_an_interpreter_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = folder / "stranger"
    stranger.mkdir()
    for name in ("importlib", "email", "csv", "zipfile"):
        (stranger / f"{name}.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    monkeypatch.chdir(stranger)
    made = of(folder, f"hf:{folder / 'model'}", Settings(python=sys.executable))
    assert (made.doubts, list(stranger.glob("*.ran"))) == ((), [])


@pytest.mark.parametrize(
    ("source", "settings", "doubt"),
    [
        ("py:{folder}/f.py:f", Settings(), "the candidate is a function, which may read data that cannot be tracked"),
        ("hf:some/model", Settings(), "the candidate is a model on a hub, where it may have changed"),
        ("max:some/model", Settings(revision="main"), "the candidate is a model on a hub, where it may have changed"),
        (
            "hf:{folder}/model",
            Settings(trust_remote_code=True),
            "the candidate runs remote code, which may have changed",
        ),
    ],
)
def test_what_nobody_sees(folder: Path, source: str, settings: Settings, doubt: str) -> None:
    (folder / "f.py").write_text("")
    assert of(folder, source.format(folder=folder), settings).doubts == (doubt,)


def test_an_adapter_s_model_lies_elsewhere(folder: Path) -> None:
    (folder / "model/adapter_config.json").write_text("{}")
    found = of(folder, f"hf:{folder / 'model'}")
    assert found.doubts == ("the candidate is an adapter of a model that lies elsewhere",)


def test_the_candidate_s_own_settings_count_for_the_candidate(folder: Path) -> None:
    request = Request(
        folder / "dump.npy", Path(f"hf:{folder / 'model'}"), candidate_settings=Settings(trust_remote_code=True)
    )
    assert dependencies_of(request).doubts == ("the candidate runs remote code, which may have changed",)


def test_the_folder_one_stands_in_counts_for_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"hf:{folder / 'model'}"
    before = of(folder, source)
    monkeypatch.chdir(folder)
    assert of(folder, source).changed(before.states) == "the folder one stands in"
    assert Path(os.curdir).resolve() == folder.resolve()
