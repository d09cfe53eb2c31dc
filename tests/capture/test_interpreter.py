"""Which interpreter runs a source: the command line's, the engine's own environment, or this; never a stranger's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import tensordiff
from tensordiff.capture.engines import ENGINES, environment_command
from tensordiff.capture.interpreter import NAME, NoAnswer, ask_json, interpreter, user_file
from tensordiff.errors import BadFile
from tensordiff.session.storage.preferences import preferences_here

KIND = "llamacpp"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tensordiff's own environment, and the user's configuration elsewhere; neither has anything yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user_file().parent.mkdir(parents=True)
    (tmp_path / "home" / ".venv").mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "home" / ".venv"))
    return tmp_path / "home"


def environment(folder: Path) -> Path:
    python = folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    return python


def test_without_an_environment_it_is_this_interpreter() -> None:
    assert interpreter(KIND) == interpreter("hf") == sys.executable


def test_the_environment_beside_ours_is_found(home: Path) -> None:
    python = environment(home / f".venv-{KIND}")
    assert interpreter(KIND) == str(python)
    assert interpreter("hf") == sys.executable  # which has none of its own
    assert interpreter(KIND, "/usr/bin/python3") == "/usr/bin/python3"


def test_an_environment_may_be_given_for_its_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = environment(tmp_path / "elsewhere")
    assert interpreter(KIND, str(tmp_path / "elsewhere")) == interpreter("hf", str(python)) == str(python)
    monkeypatch.chdir(tmp_path)
    assert interpreter("hf", "elsewhere") == str(Path("elsewhere", "bin", "python"))
    (tmp_path / "empty").mkdir()
    for said in ("python3", "./python3", "empty"):  # a command, a path, a folder without one: as they are
        assert interpreter(KIND, said) == said


def test_a_folder_called_as_a_command_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment(tmp_path / "stranger" / "python3")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path / "stranger")
    assert interpreter("hf", "python3") == "python3"
    assert interpreter("hf", "./python3") == str(Path("python3", "bin", "python"))


@pytest.mark.parametrize("ending", ["", "bin/python"])
def test_the_users_own_file_comes_first(home: Path, tmp_path: Path, ending: str) -> None:
    environment(home / f".venv-{KIND}")
    python = environment(tmp_path / "elsewhere")
    user_file().write_text(f"[engines]\n{KIND} = '{tmp_path / 'elsewhere' / ending}'\n")
    assert interpreter(KIND) == str(python)
    assert preferences_here(tmp_path).sentences == ()


@pytest.mark.parametrize("named", ["'/no/such'", "'relative'", "3"])
def test_an_environment_that_is_none_is_an_error(named: str) -> None:
    user_file().write_text(f"[engines]\n{KIND} = {named}\n")
    with pytest.raises(BadFile, match=r"\[engines\] llamacpp: should be the absolute path .*, and \S+ is none$"):
        interpreter(KIND)


def test_the_current_folder_names_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = tmp_path / "stranger"
    python = environment(stranger / f".venv-{KIND}")
    (stranger / NAME).write_text(f"[engines]\n{KIND} = '{python}'\n")
    monkeypatch.chdir(stranger)
    assert interpreter(KIND) == sys.executable
    (sentence,) = preferences_here(stranger).sentences
    assert "[engines] is ignored here; environments are named in" in sentence


def test_what_lies_in_the_current_folder_is_not_imported_when_an_interpreter_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("print('of the current folder')")
    monkeypatch.chdir(tmp_path)
    assert ask_json(sys.executable, "import json, sys; print(json.dumps(dict(said=sys.argv[1])))", "ü") == {"said": "ü"}


@pytest.mark.parametrize(
    ("python", "program", "has_started"),
    [
        ("/nowhere/python", "", False),
        (sys.executable, "import nowhere", True),
        (sys.executable, "print(1)", True),
    ],
)
def test_an_interpreter_that_gives_no_answer(python: str, program: str, has_started: bool) -> None:
    with pytest.raises(NoAnswer, match="could not be asked") as raised:
        ask_json(python, program)
    assert raised.value.has_started is has_started


@pytest.mark.parametrize("kind", [kind for kind, engine in ENGINES.items() if engine.has_environment])
def test_the_command_that_makes_an_environment_is_make_in_a_checkout_and_pip_elsewhere(
    kind: str, home: Path, tmp_path: Path
) -> None:
    guide = (Path(tensordiff.__file__).parent.parent / "docs" / "engines.md").read_text("utf-8")
    assert environment_command(kind) == f"make engine-{kind}"
    command = environment_command(kind, str(tmp_path))
    assert f"-m venv {home}/.venv-{kind} && " in command
    parts = [part.removeprefix(f"{home}/") for part in command.split(" && ")[1:]]
    assert all(part in guide for part in parts), parts
    environment(home / f".venv-{kind}")
    assert interpreter(kind).startswith(f"{home}/.venv-{kind}")
