"""Options that choose what is written: wrong ones are refused before anything is loaded, and nothing is no answer."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensordiff
from tensordiff.capture.settings import Settings
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.models import run_here
from tests.cli.command import Call, assert_one_sentence
from tests.cli.conftest import call as call

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("expression", ["(", "*", "[a"])
def test_what_is_no_expression_is_refused_by_its_name(expression: str, call: Call, tmp_path: Path) -> None:
    said = call("capture", "py:not_even_there.py:f", "-o", tmp_path / "d", "--layers", expression)
    assert_one_sentence(said, f"--layers {expression!r} is not a regular expression")


@pytest.mark.parametrize("value", ["Infinity", "1e999", "NaN", "[1, -Infinity]"])
def test_what_no_config_can_hold_is_refused_before_anything_runs(value: str, call: Call, tmp_path: Path) -> None:
    said = call("capture", "hf:not/there", "-o", tmp_path / "d", "--config", f"rope_theta={value}")
    assert_one_sentence(said, "--config rope_theta: ", "is no value of a config; give a finite number")


def test_the_library_refuses_it_too(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"^layers '\(' is not a regular expression"):
        tensordiff.capture(torch.nn.Linear(2, 2), tmp_path / "d", layers="(")
    assert not (tmp_path / "d").exists()


def test_what_is_no_model_is_named_by_its_type(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"^expected a torch.nn.Module, got int$"):
        tensordiff.capture(3, tmp_path / "d")


def test_an_expression_that_matches_nothing_is_an_error(call: Call, small: str, tmp_path: Path) -> None:
    said = call("capture", small + "good", "-o", tmp_path / "d", "--layers", "nosuchlayer")
    assert said.status == 2
    assert "nothing was written: 'nosuchlayer' matches no layer; there are 19: model, model.blocks.0, " in said.err
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert not dump.entries


def test_it_is_one_where_inputs_are_injected_too(call: Call, small: str, tmp_path: Path) -> None:
    call("capture", small + "good", "-o", tmp_path / "ref")
    more = "--layers", "nosuchlayer", "--inject", tmp_path / "ref"
    said = call("capture", small + "good", "-o", tmp_path / "d", *more)
    assert said.status == 2
    assert "nothing was written: 'nosuchlayer' matches no layer" in said.err


def test_the_library_says_that_it_matches_nothing(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    with tensordiff.capture(model, tmp_path / "d", layers="nosuchlayer") as capturing:
        model(torch.ones(2))
    assert "the dump is empty: 'nosuchlayer' matches no layer; there are 2: model, model.0" in capturing.notes


@pytest.mark.parametrize("size", ["-5", "-1GB", "inf", "nan", "lots", "1e999"])
def test_what_is_no_size_is_refused(size: str, call: Call, tmp_path: Path) -> None:
    said = call("capture", "py:not_even_there.py:f", "-o", tmp_path / "d", "--max-bytes", size)
    assert_one_sentence(said, "is not a size such as 500MB or 2GB")


def test_settings_of_a_file_are_looked_at_too() -> None:
    with pytest.raises(CaptureError, match="--max-bytes -5: is less than nothing"):
        Settings.from_json({"max_bytes": -5})


def test_nothing_is_written_after_the_first_that_does_not_fit(small: str, tmp_path: Path) -> None:
    """Tensors are 48 bytes, 96, 192, and of the sum at the end 4, which would fit."""
    run_here(small + "good", tmp_path / "whole")
    ran = run_here(small + "good", tmp_path / "part", max_bytes=200)
    whole, part = ([entry.name for entry in open_dump(tmp_path / name).entries] for name in ("whole", "part"))
    assert part == whole[:3]
    assert ran.done.facts["bytes"] == 48 + 48 + 96
    assert f"{len(whole) - 3} tensors were left out: --max-bytes 200 was reached" in ran.done.facts["notes"]
