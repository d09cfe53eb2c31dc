"""Which command runs, help, completion, and what is said of a word that is none."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from tensordiff import __version__
from tensordiff.cli.main import COMMANDS, tensordiff
from tests.cli.command import CANDIDATE, REFERENCE, Call, assert_one_sentence, process


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_of_every_command(call: Call, command: str, option: str) -> None:
    said = call(command, option)
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith(f"Usage: tensordiff {command} ")


def test_help_names_every_command_and_every_status(call: Call) -> None:
    said = call("--help")
    assert (said.status, said.err) == (0, "")
    for word in (*COMMANDS, "REF CAND", "0 agrees", "1 diverges", "2 inconclusive", "130 interrupted"):
        assert word in " ".join(said.out.split())


@pytest.mark.parametrize(
    "option",
    [
        "--json",
        "--rules FILE",
        "--golden DUMP",
        "--injected DUMP",
        "--atol X",
        "--rtol X",
        "--threshold X",
        "--step N",
        "--only REGEX",
    ],
)
def test_the_contract_s_options_are_in_the_help(call: Call, option: str) -> None:
    assert option in call("compare", "--help").out


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"tensordiff, version {__version__}\n", "")


def test_nothing_at_all_is_no_success(call: Call) -> None:
    said = call()
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("Usage: tensordiff ")


def test_a_misspelt_command(call: Call) -> None:
    assert_one_sentence(call("campare", REFERENCE, CANDIDATE), "'campare' is neither a command", "you mean compare")


def test_a_word_like_no_command(call: Call) -> None:
    assert_one_sentence(call("frobnicate"), "'frobnicate' is neither", f"commands are {', '.join(COMMANDS)}")


def test_one_path_alone(call: Call) -> None:
    assert_one_sentence(call(REFERENCE), "Missing argument 'CANDIDATE'", "see tensordiff compare --help")


def test_three_paths(call: Call) -> None:
    assert_one_sentence(call(REFERENCE, CANDIDATE, REFERENCE), "unexpected extra argument")


def test_bare_paths_take_the_options_of_compare(call: Call) -> None:
    said = call(REFERENCE, CANDIDATE, "--json", "--only", "layers.0")
    assert said.status == 0
    assert said.out.startswith('{"schema": "tensordiff.compare/1"')


def test_a_dump_in_this_folder_needs_no_slash(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(REFERENCE).parent)
    assert call("reference", "candidate", "-q").status == 1


def test_the_installed_command_is_the_same() -> None:
    script = Path(sys.executable).with_name("tensordiff")
    if not script.exists():
        pytest.skip("not installed beside this Python")
    assert "tensordiff.cli.main" in script.read_text()


def complete(*words: str) -> list[str]:
    env = {"_TENSORDIFF_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    said = process(env=env)
    assert (said.status, said.err) == (0, "")
    return said.out.splitlines()


def test_commands_are_completed() -> None:
    assert complete("tensordiff", "co") == ["plain,compare", "plain,convert"]
    assert complete("tensordiff", "") == [f"plain,{command}" for command in COMMANDS]


def test_options_are_completed() -> None:
    assert complete("tensordiff", "compare", "--th") == ["plain,--threshold"]


def test_paths_are_completed_by_the_shell() -> None:
    assert complete("tensordiff", "compare", "sample") == ["file,sample"]


def test_the_second_path_without_a_command_is_completed() -> None:
    assert complete("tensordiff", "./reference", "./cand") == ["file,./cand"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_script(name: str) -> None:
    said = process(env={"_TENSORDIFF_COMPLETE": f"{name}_source"})
    assert said.status == 0
    assert f"_TENSORDIFF_COMPLETE={name}_complete" in said.out


@pytest.mark.parametrize(("option", "opens"), [("--faults", False), ("--learn", True), ("--no-learn", True)])
def test_two_paths_open_the_app_unless_only_compare_has_the_option(
    monkeypatch: pytest.MonkeyPatch, option: str, opens: bool
) -> None:
    monkeypatch.setattr("tensordiff.cli.streams.has_screen", lambda: True)
    context = click.Context(tensordiff)
    name, _, _ = tensordiff.resolve_command(context, [str(REFERENCE), str(CANDIDATE), option])
    assert name == ("open" if opens else "compare")


def test_options_of_a_comparison_may_stand_before_its_paths(call: Call) -> None:
    after, before = call(str(REFERENCE), str(CANDIDATE), "--json"), call("--json", str(REFERENCE), str(CANDIDATE))
    assert (before.status, before.out, before.err) == (after.status, after.out, after.err)
    assert call("--jsn", str(REFERENCE), str(CANDIDATE)).err.startswith("tensordiff: No such option '--jsn'")
