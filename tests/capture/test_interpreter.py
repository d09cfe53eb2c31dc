"""Which interpreter runs a source: the command line's, the engine's own environment, or this; never a stranger's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensordiff.capture.interpreter import NAME, interpreter, user_file
from tensordiff.errors import BadFile
from tensordiff.session.preferences import preferences_here

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
    with pytest.raises(BadFile, match=r"\[engines\] llamacpp: should be the absolute path"):
        interpreter(KIND)


def test_the_current_folder_names_no_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = tmp_path / "stranger"
    python = environment(stranger / f".venv-{KIND}")
    (stranger / NAME).write_text(f"[engines]\n{KIND} = '{python}'\n")
    monkeypatch.chdir(stranger)
    assert interpreter(KIND) == sys.executable
    (sentence,) = preferences_here(stranger).sentences
    assert "its [engines] do not count; environments are named in" in sentence
