"""``assert_agrees``, and pytest where it fails."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensordiff
from tensordiff.disagreement import report_path
from tensordiff.errors import TensordiffError
from tensordiff.testing import Disagreement, assert_agrees
from tests import processes
from tests.making import SAMPLES, nudged, numbers, write

A = numbers(3, 8)
REFERENCE, CANDIDATE, INJECTED, MAX = (
    SAMPLES / name for name in ("reference", "candidate", "candidate_injected", "max")
)


@pytest.fixture(autouse=True)
def no_place() -> None:
    """As where no plugin is loaded."""
    report_path.set(None)


def test_dumps_that_agree() -> None:
    assert len(assert_agrees(REFERENCE, str(MAX)).rows) == 45


def test_dumps_that_do_not(tmp_path: Path) -> None:
    with pytest.raises(AssertionError) as raised:
        assert_agrees(REFERENCE, CANDIDATE, injected=INJECTED, report=tmp_path / "r.html")
    said = str(raised.value)
    assert said.startswith("layers.1.mlp.act_fn is the first place that is wrong by itself: rel_l2 8.3e-02 even when")
    assert "\n  diverges layers.1.mlp: " in said
    assert said.endswith(f"\nreport: {tmp_path / 'r.html'}")
    assert (tmp_path / "r.html").stat().st_size > 10_000


def test_arrays() -> None:
    report_path.set(None)  # the plugin gave this very test a place
    assert_agrees({"a": A, "b": A + 1}, {"a": nudged(A, 1e-7), "b": A + 1})
    with pytest.raises(Disagreement, match="b is the first place that is wrong") as raised:
        assert_agrees({"a": A, "b": A}, {"a": A, "b": 1.1 * A})
    assert "\nlooks like: the reference times 1.1" in str(raised.value)
    assert raised.value.report is None
    assert 'give one with report="FILE.html"' in str(raised.value)


def test_a_dump_against_arrays(tmp_path: Path) -> None:
    path = write(tmp_path / "d", {"a": A})
    assert_agrees(path, {"a": A})
    assert_agrees({"a": A}, path)


@pytest.mark.parametrize("how", [{"rtol": 0.2}, {"atol": 1.0}, {"threshold": 0.2}])
def test_a_tolerance_of_one_s_own(how: dict[str, float]) -> None:
    assert_agrees({"a": A}, {"a": 1.1 * A}, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["atol", "rtol", "threshold"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "1", True])
def test_a_tolerance_that_lets_anything_pass_is_refused(name: str, value: object) -> None:
    with pytest.raises(TensordiffError, match=f"^{name} is .*; it is a number, 0 or more and finite$"):
        assert_agrees({"a": [1.0]}, {"a": [100.0]}, **{name: value})  # type: ignore[arg-type]


def test_a_tolerance_may_be_a_number_of_numpy() -> None:
    assert_agrees({"a": A}, {"a": 1.1 * A}, rtol=np.float32(0.2))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["golden", "injected"])
def test_a_third_run_that_answers_nothing_is_refused(tmp_path: Path, name: str) -> None:
    other = {"z": numbers(5)}
    with pytest.raises(TensordiffError, match=f"^{name}: none of its entries matches one of the reference"):
        assert_agrees({"a": A}, {"a": A}, **{name: other})  # type: ignore[arg-type]
    path = write(tmp_path / "other", other)
    with pytest.raises(TensordiffError, match="other: none of its entries matches one of the reference"):
        assert_agrees({"a": A}, {"a": A}, **{name: path})  # type: ignore[arg-type]


def test_a_golden_of_arrays() -> None:
    wide = {"a": A.astype("f8")}
    outcome = assert_agrees({"a": nudged(A, 1e-7)}, {"a": nudged(A, 1e-7, seed=2)}, golden=wide)
    assert outcome.rows[0].golden_ratio == pytest.approx(1, rel=0.1)


def test_tolerances_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("[[tolerance]]\nmatch = 'a'\nrel_l2 = 0.2\n")
    assert_agrees({"a": A}, {"a": 1.1 * A}, tolerances=path)
    path.write_text("")
    with pytest.raises(TensordiffError, match="would let anything pass"):
        assert_agrees({"a": A}, {"a": A}, tolerances=path)


def test_rules_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("[[rule]]\nside = 'candidate'\nmatch = '^port\\.'\nreplace = ''\n")
    assert len(assert_agrees({"a": A}, {"port.a": A}, rules=path).rows) == 1


def test_nothing_paired_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="Whether the two runs agree is unknown: nothing was paired"):
        assert_agrees({"a": A}, {"b": numbers(5, 5)})


def test_no_arrays_at_all() -> None:
    with pytest.raises(AssertionError, match="nothing was paired"):
        assert_agrees({}, {})


@pytest.mark.parametrize("array", [np.float32(1), np.array([np.nan, 1], "f4"), [1, 2], True])
def test_odd_arrays_agree_with_themselves(array: object) -> None:
    assert_agrees({"a": array}, {"a": array})


@pytest.mark.parametrize("array", [np.zeros(0, "f4"), np.array([np.nan, np.nan], "f4")])
def test_arrays_without_a_value_could_not_be_compared(array: object) -> None:
    with pytest.raises(AssertionError, match="no output has a value that could be compared"):
        assert_agrees({"a": array}, {"a": array})


def test_what_are_no_numbers() -> None:
    with pytest.raises(TensordiffError, match="'a': is of type <U5, which holds no numbers"):
        assert_agrees({"a": "words"}, {"a": "words"})


def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    a = torch.tensor(A, requires_grad=True)
    assert_agrees({"a": a}, {"a": A})
    with pytest.raises(Disagreement):
        assert_agrees({"a": a}, {"a": a * 1.01})
    assert_agrees({"a": a.bfloat16()}, {"a": (a * 1.01).bfloat16()})
    assert_agrees({"a": a.bfloat16()}, {"a": A.astype(ml_dtypes.bfloat16)})


TESTS = """
from tensordiff.testing import assert_agrees

def test_right():
    assert_agrees({"a": [1.0]}, {"a": [1.0]})

def test_wrong():
    assert_agrees({"block[/0]": [1.0, 2.0]}, {"block[/0]": [1.0, 3.0]})

def test_other():
    assert 1 == 2
"""


def pytest_run(folder: Path, *args: str) -> str:
    is_installed = any(point.value == "tensordiff.pytest_plugin" for point in entry_points(group="pytest11"))
    plugin = [] if is_installed else ["-p", "tensordiff.pytest_plugin"]
    (folder / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-p", "no:cacheprovider", *args, "test_it.py"]
    done = processes.run(command, cwd=folder)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_the_plugin_names_the_culprit_and_keeps_the_report(tmp_path: Path, workers: tuple[str, ...]) -> None:
    said = pytest_run(tmp_path, "--tensordiff-reports", "kept", *workers)
    assert "2 failed, 1 passed" in said
    summary = said[said.index("tensordiff: culprits") :]
    assert "test_it.py::test_wrong: block[/0] is the first place that is wrong by itself" in summary
    assert "test_other" not in summary.partition("short test summary")[0]
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["test_it.py-test_wrong.html"]


def test_without_the_option_the_report_goes_to_a_temporary_folder(tmp_path: Path) -> None:
    said = pytest_run(tmp_path)
    (line,) = (line for line in said.splitlines() if line.startswith("test_it.py::test_wrong: "))
    kept = Path(line.partition(" Report: ")[2])
    assert kept.is_file()
    kept.unlink()
    kept.parent.rmdir()


def test_the_plugin_loads_nothing_heavy() -> None:
    heavy = ("numpy", "click", "matplotlib")
    script = f"import sys, tensordiff.pytest_plugin; print([name for name in {heavy} if name in sys.modules])"
    done = processes.run([sys.executable, "-c", script], check=True)
    assert done.stdout.strip() == "[]"


def test_the_library_is_there_by_name_and_loads_nothing_before_it_is_used() -> None:
    script = "import sys, tensordiff; print('numpy' in sys.modules); tensordiff.testing.assert_agrees({}, {})"
    done = processes.run([sys.executable, "-c", script])
    assert done.stdout.strip() == "False" and "tensordiff.disagreement.Disagreement: " in done.stderr
    assert tensordiff.Disagreement is Disagreement
