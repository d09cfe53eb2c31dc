"""tensordiff.toml: the nearest counts, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.errors import BadFile
from tensordiff.session.preferences import NAME, Preferences, preferences_file, read_preferences


def preferences(folder: Path, text: str) -> Preferences:
    (folder / NAME).write_text(text)
    return read_preferences(folder / NAME)


def test_nothing_is_the_usual() -> None:
    assert read_preferences(None) == Preferences()


def test_all_that_can_be_said(tmp_path: Path) -> None:
    said = preferences(tmp_path, 'theme = "light"\ncolumns = ["layer"]\n[keys]\n"table.open" = "enter,right"\n')
    assert (said.theme, said.columns, said.keys) == ("light", ("layer",), {"table.open": "enter,right"})
    said.check(columns=["layer"], keys=["table.open"], themes=["light"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("theem = 'light'", "did you mean 'theme'?"),
        ("theme = 3", "theme: should be a string"),
        ("columns = 'layer'", "columns: should be a list"),
        ("columns = [1]", "columns: should be a list"),
        ("keys = 3", "[keys]: should be strings"),
        ("[keys]\nx = 1", "[keys]: should be strings"),
        ("= 1", "not valid TOML"),
        ("\x00", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadFile) as raised:
        preferences(tmp_path, text)
    assert said in str(raised.value)
    assert NAME in str(raised.value)


@pytest.mark.parametrize("text", ["columns = ['layr']", "[keys]\n'table.opn' = 'x'", "theme = 'drak'"])
def test_unknown_names_are_refused_with_the_nearest(tmp_path: Path, text: str) -> None:
    said = preferences(tmp_path, text)
    with pytest.raises(BadFile, match="did you mean"):
        said.check(columns=["layer"], keys=["table.open"], themes=["dark"])


def test_not_text(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\xff")
    with pytest.raises(BadFile, match="cannot be read"):
        read_preferences(tmp_path / NAME)


def test_the_nearest_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "config" / "tensordiff").mkdir(parents=True)
    user = tmp_path / "config" / "tensordiff" / NAME
    user.write_text("")
    assert preferences_file(inner) == user
    (tmp_path / NAME).write_text("")
    assert preferences_file(inner) == tmp_path / NAME
    (inner / NAME).write_text("")
    assert preferences_file(inner) == inner / NAME
