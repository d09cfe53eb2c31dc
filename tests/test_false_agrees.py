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

from tensordiff import compare
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


def test_a_channel_that_is_huge_hides_nothing() -> None:
    """It is all of the norm: one channel of 16 is 1e9, and the others are wrong by 40 %."""
    huge = np.full((24, 1), 1e9, np.float32)
    reference, candidate = (np.concatenate([side, huge], axis=1) for side in (RIGHT, np.float32(1.4) * RIGHT))
    assert np.linalg.norm(candidate - reference) / np.linalg.norm(reference) < 1e-8
    assert_agrees({"mlp": reference}, {"mlp": reference})
    with pytest.raises(AssertionError, match="comes from a few large elements; the others are off by 4"):
        assert_agrees({"mlp": reference}, {"mlp": candidate})


def test_a_tensor_without_rows_beside_one_with_a_row_could_not_be_compared() -> None:
    """It was stretched to no rows at all, which numpy refused."""
    both = {f"layers.{k}": numbers(1, 24, 16, seed=k) for k in range(4)}
    outcome = compare(both, {**both, "layers.2": both["layers.2"][:0]})
    assert outcome.verdict == "unknown" and outcome.exit_status == 2
    assert [row.verdict for row in outcome.rows].count("unknown") == 1


def test_a_view_that_leaves_nothing_does_not_agree(two: tuple[Path, Path], tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[view]]\nmatch = ".*"\nreference = "scale 0"\ncandidate = "scale 0"\n')
    assert status(*two, "--rules", rules) == 2


def test_what_a_view_leaves_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All but the first token is wrong, and a rule looks at the first token alone."""
    wrong = RIGHT.copy()
    wrong[1:] = WRONG[1:]
    paths = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, last in zip(paths, (RIGHT, wrong), strict=True):
        save_file({"layers.0": RIGHT, "layers.1": last}, path)
    rules = tmp_path / "rules.toml"
    rules.write_text('[[view]]\nmatch = "layers.1"\nreference = "slice 0 0 1"\ncandidate = "slice 0 0 1"\n')
    assert status(*paths, "--rules", rules) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "1 of them in part" in said and "compared in part, by a view: layers.1 (slice 0 0 1" in said


def test_a_folder_of_links_to_the_other_side_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("reference", "candidate", "copy"):
        (tmp_path / name).mkdir()
    save_file({"layers.0": RIGHT, "layers.1": WRONG}, tmp_path / "reference" / "a.safetensors")
    (tmp_path / "candidate" / "a.safetensors").hardlink_to(tmp_path / "reference" / "a.safetensors")
    (tmp_path / "copy" / "a.safetensors").write_bytes((tmp_path / "reference" / "a.safetensors").read_bytes())
    for name, is_told in (("candidate", True), ("copy", False)):
        status(tmp_path / "reference", tmp_path / name)
        assert ("are the same file or folder" in " ".join(capsys.readouterr().out.split())) == is_told
