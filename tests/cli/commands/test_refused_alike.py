"""Tolerances that nothing could fail and selections of nothing: refused alike, wherever they come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.errors import AlignError
from tensordiff.testing import Disagreement, assert_agrees
from tests.cli.command import CANDIDATE, REFERENCE, Call, assert_one_sentence

REFUSED = "it is a number, 0 or more and finite"
COMPARING = ("compare", "report", "bisect --auto", "verify", "serve")


def command_line(command: str, folder: Path) -> list[str]:
    """A command on two dumps that disagree."""
    name, *more = command.split()
    return [name, REFERENCE, CANDIDATE, *more, *(["-o", str(folder / "verified")] if name == "verify" else [])]


# --- tolerances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e999", "-1", "-1e-300"])
@pytest.mark.parametrize("option", ["--atol", "--rtol", "--threshold"])
@pytest.mark.parametrize("command", COMPARING)
def test_on_the_command_line(call: Call, tmp_path: Path, command: str, option: str, value: str) -> None:
    assert_one_sentence(call(*command_line(command, tmp_path), f"{option}={value}"), option, REFUSED)


@pytest.mark.parametrize("value", ["inf", "nan", "-1.0", "1e999", "true", "'1'", f"1{'0' * 400}"])
@pytest.mark.parametrize("key", ["rel_l2", "atol", "rtol", "max_abs", "cos_dist", "kl_div"])
@pytest.mark.parametrize("option", ["--rules", "--tolerances"])
def test_in_a_file(call: Call, tmp_path: Path, option: str, key: str, value: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(f"[[tolerance]]\nmatch = ''\n{key} = {value}\n")
    assert_one_sentence(call("compare", REFERENCE, CANDIDATE, option, file), "rules.toml", key, REFUSED)


@pytest.mark.parametrize("value", ["inf", "nan", "-1.0", "1e999", "true", "false", "'1'", "''", "[]"])
@pytest.mark.parametrize("key", ["atol", "rtol", "threshold"])
def test_in_a_suite(call: Call, tmp_path: Path, key: str, value: str) -> None:
    suite = tmp_path / "suite.toml"
    sides = f"reference = '{REFERENCE}'\ncandidate = '{CANDIDATE}'"
    suite.write_text(f"[[model]]\nname = 'a'\n{sides}\n{key} = {value}\n")
    assert_one_sentence(call("verify", "--suite", suite, "-o", tmp_path / "out"), "suite.toml", key, REFUSED)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), -1.0, True, False, "1", ""])
@pytest.mark.parametrize("key", ["atol", "rtol", "threshold"])
def test_in_a_test(key: str, value: object) -> None:
    with pytest.raises(AlignError, match=f"^{key} is .*{REFUSED}"):
        assert_agrees(REFERENCE, CANDIDATE, **{key: value})  # type: ignore[arg-type]


# --- selections -----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [("--only", "no such layer"), ("--step", "99"), ("--only", "mlp", "--step", "99")])
@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("command", ["compare", "report", "bisect --auto", "bisect --rerun", "verify"])
def test_of_no_pair(call: Call, tmp_path: Path, command: str, as_json: bool, options: tuple[str, ...]) -> None:
    said = call(*command_line(command, tmp_path), *options, *(["--json"] if as_json else []))
    assert said.status == 2
    assert "none of the 76 pairs is" in said.err.splitlines()[-1]


@pytest.mark.parametrize("options", [("--only", "no such layer"), ("--step", "99")])
@pytest.mark.parametrize("as_json", [False, True])
def test_of_no_entry(call: Call, as_json: bool, options: tuple[str, ...]) -> None:
    said = call("inspect", REFERENCE, *options, *(["--json"] if as_json else []))
    assert_one_sentence(said, REFERENCE, "none of the 76 entries is", options[1])


@pytest.mark.parametrize("selection", [{"only": "no such layer"}, {"step": 99}])
def test_of_no_pair_in_a_test(selection: dict[str, object]) -> None:
    with pytest.raises(Disagreement):
        assert_agrees(REFERENCE, REFERENCE, **selection)  # type: ignore[arg-type]


def test_of_no_pair_in_a_suite(call: Call, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(f"[[model]]\nname = 'a'\nreference = '{REFERENCE}'\ncandidate = '{REFERENCE}'\nstep = 99\n")
    assert call("verify", "--suite", suite, "-o", tmp_path / "out").status == 2
