"""Every way in which a wrong dump was once said to agree: made anew here, so that it is tried everywhere.

Most of a dump was left out without a word, or what should decide was no number. ``test_foreign`` tries the real files
of other tools where they lie beside the checkout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensordiff.cli.main import _exit_status
from tensordiff.dump.dtypes import Array
from tensordiff.errors import TensordiffError
from tensordiff.testing import assert_agrees
from tests.making import numbers, truncate

RIGHT, WRONG = numbers(24, 16), numbers(24, 16, seed=1)
Write = Callable[[Path, Array], None]


def status(*arguments: object) -> int:
    return _exit_status(["compare", *map(str, arguments)], debug=False)


def debugger_folder(folder: Path, values: Array) -> None:
    """One file a tensor, each with the same key."""
    for k, one in enumerate((RIGHT, values)):
        save_file({"data": one}, folder / f"LlamaModel.layers.{k}_outputs.safetensors")


def npy_tree(folder: Path, values: Array) -> None:
    (folder / "layers").mkdir()
    np.save(folder / "embed.npy", RIGHT)
    np.save(folder / "layers" / "mlp.npy", values)


def safetensors_beside_npz(folder: Path, values: Array) -> None:
    save_file({"embed": RIGHT}, folder / "a.safetensors")
    np.savez(folder / "b.npz", mlp=values)


def npy_beside_npz(folder: Path, values: Array) -> None:
    np.save(folder / "embed.npy", RIGHT)
    np.savez(folder / "b.npz", mlp=values)


@pytest.mark.parametrize("write", [debugger_folder, npy_tree, safetensors_beside_npz, npy_beside_npz])
def test_what_was_left_out_is_not_said_to_agree(write: Write, tmp_path: Path) -> None:
    for name, values in (("reference", RIGHT), ("candidate", WRONG)):
        (tmp_path / name).mkdir()
        write(tmp_path / name, values)
    assert status(tmp_path / "reference", tmp_path / "candidate") != 0


def test_a_truncated_step_is_not_said_to_agree(tmp_path: Path) -> None:
    for name in ("reference", "candidate"):
        for step in (0, 1):
            (tmp_path / name / str(step)).mkdir(parents=True)
            save_file({"embed": RIGHT, "mlp": RIGHT}, tmp_path / name / str(step) / "model.safetensors")
    assert status(tmp_path / "reference", tmp_path / "candidate") == 0
    truncate(tmp_path / "candidate" / "1" / "model.safetensors")
    assert status(tmp_path / "reference", tmp_path / "candidate") == 2


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "reference.safetensors", tmp_path / "candidate.safetensors"
    for path, values in zip(paths, (RIGHT, WRONG), strict=True):
        save_file({"mlp": values}, path)
    return paths


@pytest.mark.parametrize("option", ["--atol", "--rtol", "--threshold"])
@pytest.mark.parametrize("value", ["nan", "-1"])
def test_what_is_no_tolerance_is_refused(option: str, value: str, two: tuple[Path, Path]) -> None:
    assert status(*two, option, value) == 2


def test_a_selection_of_nothing_and_third_runs_that_answer_nothing_are_refused(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"quite_another": np.ones(3, np.float32)}, other)
    assert status(two[0], two[0], "--only", "nothing_of_this_name") == 2
    assert status(two[0], two[0], "--golden", other) == 2
    assert status(two[0], two[0], "--injected", other) == 2
    assert status(two[0], two[0]) == 0


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_nor_does_a_test_pass_by_them(value: float) -> None:
    with pytest.raises((TensordiffError, ValueError)):
        assert_agrees({"mlp": RIGHT}, {"mlp": WRONG}, atol=value)


@pytest.mark.parametrize(
    "line", [f"{name} = {value}" for name in ("atol", "rtol", "threshold") for value in ("nan", "-1.0")]
)
def test_nor_does_a_suite(line: str, two: tuple[Path, Path], tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    model = f'[[model]]\nname = "wrong"\nreference = "{two[0].name}"\ncandidate = "{two[1].name}"\n'
    suite.write_text(f"{model}{line}\n")
    assert _exit_status(["verify", "--suite", str(suite), "-o", str(tmp_path / "v")], debug=False) != 0


@pytest.mark.parametrize("value", ["nan", "-1.0"])
def test_nor_does_a_suite_by_a_file_of_tolerances(value: str, two: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text(f"[[tolerance]]\nmatch = 'mlp'\nrel_l2 = {value}\n")
    suite = tmp_path / "suite.toml"
    model = f'[[model]]\nname = "wrong"\nreference = "{two[0].name}"\ncandidate = "{two[1].name}"\n'
    suite.write_text(f'{model}tolerances = "limits.toml"\n')
    assert _exit_status(["verify", "--suite", str(suite), "-o", str(tmp_path / "v")], debug=False) != 0
