"""tensordiff.toml: the nearest counts for how things look, the user's own for keys; what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.capture.interpreter import NAME, user_file
from tensordiff.errors import BadFile
from tensordiff.session.storage.preferences import Preferences, preferences_here, read_preferences


def preferences(folder: Path, text: str) -> Preferences:
    (folder / NAME).write_text(text)
    return read_preferences(folder / NAME)


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file, which is not there yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user_file().parent.mkdir(parents=True)
    return user_file()


def test_nothing_is_the_usual(tmp_path: Path) -> None:
    assert preferences_here(tmp_path) == Preferences()


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
        (f"theme = {'9' * 5000}", "not valid TOML"),
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


def test_the_nearest_file_counts(tmp_path: Path, config: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for path, theme in ((config, "light"), (tmp_path / NAME, "dark"), (inner / NAME, "nord")):
        path.write_text(f"theme = '{theme}'")
        assert preferences_here(inner).theme == theme
    assert preferences_here(tmp_path).theme == "dark"


def test_keys_are_bound_by_the_user_alone(tmp_path: Path, config: Path) -> None:
    (tmp_path / NAME).write_text("theme = 'dark'\n[keys]\n'app.quit' = 'j'\n")
    here = preferences_here(tmp_path)
    assert (here.theme, here.keys) == ("dark", {})
    assert len(here.sentences) == 1 and str(tmp_path / NAME) in here.sentences[0] and str(config) in here.sentences[0]
    config.write_text("theme = 'light'\ncolumns = ['layer']\n[keys]\n'table.open' = 'right'\n")
    here = preferences_here(tmp_path)
    assert (here.theme, here.columns, here.keys) == ("dark", ("layer",), {"table.open": "right"})
    assert here.paths == {"theme": tmp_path / NAME, "columns": config, "keys": config} and len(here.sentences) == 1


@pytest.mark.parametrize("keys", ["keys = 3", "[keys]\nx = 1", "[keys]\n'no.such' = 'x'", "[keys]"])
def test_keys_that_do_not_count_are_not_looked_at(tmp_path: Path, keys: str) -> None:
    (tmp_path / NAME).write_text(keys)
    here = preferences_here(tmp_path)
    here.check(columns=[], keys=[], themes=[])
    assert len(here.sentences) == 1


def test_the_path_in_the_sentence_is_printable(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31m"
    folder.mkdir()
    (folder / NAME).write_text("[keys]")
    assert preferences_here(folder).sentences[0].isprintable()


def test_in_the_configuration_folder_itself_the_file_is_the_users(config: Path) -> None:
    config.write_text("[keys]\n'table.open' = 'right'\n")
    here = preferences_here(config.parent)
    assert here.keys == {"table.open": "right"} and here.sentences == ()


def test_an_unknown_name_is_blamed_on_the_file_it_stands_in(tmp_path: Path, config: Path) -> None:
    config.write_text("columns = ['layr']")
    (tmp_path / NAME).write_text("theme = 'dark'")
    with pytest.raises(BadFile, match=str(config)):
        preferences_here(tmp_path).check(columns=["layer"], keys=[], themes=["dark"])
