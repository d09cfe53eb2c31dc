"""``tensordiff.compare``: what it takes, and what its result has."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import tensordiff
from tensordiff.errors import NotADump, TensordiffError
from tensordiff.library.result import NUMBERS, Result, ResultRow
from tensordiff.report.comparison_json import dumps
from tests.capture.models import SMALL, script
from tests.library.captures import captured
from tests.making import SAMPLES, nudged, numbers, write

A = numbers(3, 8)
REFERENCE, CANDIDATE, MAX = SAMPLES / "reference", SAMPLES / "candidate", SAMPLES / "max"


@pytest.fixture(scope="module")
def found() -> Result:
    return tensordiff.compare(REFERENCE, CANDIDATE, injected=SAMPLES / "candidate_injected")


def test_dumps(found: Result) -> None:
    assert (found.verdict, found.exit_status, bool(found)) == ("diverges", 1, False)
    assert found.culprit is not None
    assert found.culprit.name == "layers.1.mlp.act_fn"
    assert found.culprit.injected is not None
    assert len(found) == len(found.rows) == len(list(found)) > 40
    assert 0.9 < found.coverage <= 1
    assert found.logits is not None and found.logits.top_1 <= 1
    assert found.hint is not None and found.hint is found.culprit.hint
    assert "layers.1.mlp.act_fn is the first place" in repr(found)


def test_a_side_may_be_a_path_or_text() -> None:
    assert tensordiff.compare(str(REFERENCE), MAX).verdict == "agrees"


def test_the_json_is_that_of_the_command(found: Result) -> None:
    whole = json.loads(dumps(found.to_json()))
    assert whole["schema"] == "tensordiff.compare/1"
    assert whole["culprit"]["hint"]["sentence"] == found.hint.sentence if found.hint else None
    assert [one["index"] for one in whole["pairs"]] == [row.index for row in found.rows]


def test_a_row_has_its_numbers_and_its_values(found: Result) -> None:
    row = found.row("layers.1.mlp.act_fn")
    assert row.diff is not None
    assert {name: getattr(row, name) for name in NUMBERS} == {name: getattr(row.diff, name) for name in NUMBERS}
    error = np.abs(row.candidate.astype("f8") - row.reference.astype("f8"))
    assert row.reference.shape == row.shape
    assert error.max() == row.max_abs
    assert [item.error for item in row.worst(3)] == sorted(error.ravel(), reverse=True)[:3]
    assert repr(row).startswith("<✗ diverges layers.1.mlp.act_fn rel_l2=8.")


def test_values_are_the_caller_s_own(tmp_path: Path) -> None:
    row = tensordiff.compare(write(tmp_path / "a", {"x": A}), {"x": A}).rows[0]
    row.reference[:] = 7.0  # a copy, not a map of the file
    assert (tensordiff.compare(tmp_path / "a", {"x": A}).rows[0].reference == A).all()


def test_values_without_a_common_shape() -> None:
    found = tensordiff.compare({"a": A, "b": A}, {"a": A, "b": numbers(5, 7)})
    row = found.row("b")
    assert (row.verdict, row.max_abs, row.shape, row.worst(3), row.hint) == ("unknown", None, None, [], None)
    assert (row.reference.shape, row.candidate.shape) == ((3, 8), (5, 7))
    assert found.verdict == "unknown" and found.exit_status == 2


def test_a_name_that_is_none_says_the_nearest(found: Result) -> None:
    with pytest.raises(KeyError, match=r"no row is called 'layers.1.mlp.actfn'; the nearest is 'layers.1.mlp.act_fn'"):
        found.row("layers.1.mlp.actfn")
    with pytest.raises(KeyError, match="no row is called 'a'"):
        tensordiff.compare({}, {}).row("a")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(value: float) -> None:
    wrong = A.copy()
    wrong[1, 2] = value
    found = tensordiff.compare({"a": A, "b": A}, {"a": A, "b": wrong})
    assert found.verdict == "diverges" and found.culprit is not None and found.culprit.name == "b"
    json.loads(dumps(found.to_json()))
    assert len(found.to_pandas()) == len(found.to_polars()) == 2


def test_nothing_at_all() -> None:
    found = tensordiff.compare({}, {})
    assert (found.verdict, found.rows, found.culprit, found.logits) == ("unknown", (), None, None)
    assert found.to_dicts() == [] and len(found.to_pandas()) == 0 and len(found.to_polars()) == 0
    assert "nothing was paired" in found._repr_html_()


def test_tables(found: Result) -> None:
    rows = found.to_dicts()
    frame, other = found.to_pandas(), found.to_polars()
    assert list(frame.columns) == other.columns == list(rows[0])
    assert frame["rel_l2"].max() == max(row["rel_l2"] for row in rows)
    assert other["verdict"].to_list() == [row.verdict for row in found.rows]


def test_a_report(found: Result, tmp_path: Path) -> None:
    path = found.report(tmp_path / "r.md", title="mine")
    assert path.read_text("utf-8").startswith("### ✗ diverges: mine")
    with pytest.raises(TensordiffError, match="no report has the suffix"):
        found.report(tmp_path / "r.doc")


def test_tensors_of_torch_and_bfloat16() -> None:
    torch = pytest.importorskip("torch")
    a = torch.tensor(A, requires_grad=True).bfloat16()
    row = tensordiff.compare({"a": a}, {"a": a}).rows[0]
    assert row.reference.dtype == ml_dtypes.bfloat16 and row.dtypes == ("bfloat16", "bfloat16")


def test_options_are_those_of_the_command(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nside = 'candidate'\nmatch = '^port\\.'\nreplace = ''\n")
    right, wrong = {"a": A, "b": A}, {"port.a": A, "port.b": 1.1 * A}
    assert tensordiff.compare(right, wrong, rules=rules, learn=False).verdict == "diverges"
    assert tensordiff.compare(right, wrong, rules=rules, learn=False, rtol=0.2).verdict == "agrees"
    assert [row.layer for row in tensordiff.compare(right, wrong, rules=rules, only="b").rows] == ["b"]


def test_what_is_no_dump() -> None:
    with pytest.raises(NotADump, match="nowhere"):
        tensordiff.compare("nowhere", REFERENCE)


def test_an_option_that_there_is_none_of() -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'promt'; did you mean 'prompt'"):
        tensordiff.compare(REFERENCE, MAX, promt="a")  # type: ignore[call-arg]


@pytest.mark.parametrize("value", [[[1], [2, 3]], [[1, 2], 3]])
def test_a_ragged_list_is_refused_in_a_sentence(value: object) -> None:
    told = r"^'a': no array can be made of this list; give an array of numbers, or lists of equal length$"
    with pytest.raises(TensordiffError, match=told):
        tensordiff.compare({"a": value}, {"a": A})


def test_rows_of_one_layer_have_names_of_their_own() -> None:
    found = tensordiff.compare(REFERENCE, MAX)
    names = [row.name for row in found.rows]
    assert len(set(names)) == len(names)
    whole, last = found.row("lm_head"), found.row("lm_head [last_token]")
    assert (whole.shape, last.shape) == ((9, 320), (1, 320)) and whole.layer == last.layer == "lm_head"


def test_a_name_of_several_rows_is_told_with_their_indexes() -> None:
    found = tensordiff.compare({"a": A, "b": A}, {"a": A, "b": A})
    twice = replace(found, outcome=replace(found.outcome, rows=(found.outcome.rows[0],) * 2))
    with pytest.raises(KeyError, match="2 rows are called 'a'; give an index: 0, 0"):
        twice.row("a")


def test_without_inputs_the_reason_speaks_of_the_rows_before() -> None:
    noise = 1 + 3e-5 * numbers(*A.shape, seed=7)
    (_, row) = tensordiff.compare({"a": A, "b": np.tanh(A)}, {"a": A * noise, "b": 1.1 * np.tanh(A)}).rows
    assert "times the error of the rows before (" in row.why and "its inputs were not compared" in row.why
    row = tensordiff.compare({"a": A, "b": np.tanh(A)}, {"a": A, "b": 1.1 * np.tanh(A)}).rows[1]
    assert "though the rows before agree (" in row.why


def test_an_option_of_sources_beside_dumps() -> None:
    with pytest.raises(TensordiffError, match="--prompt is an option of sources, and neither side is one"):
        tensordiff.compare(REFERENCE, MAX, prompt="a")


def test_no_terminal_to_open_in(found: Result) -> None:
    with pytest.raises(TensordiffError) as told:
        found.open()
    assert f"tensordiff {REFERENCE} {CANDIDATE} --injected {SAMPLES / 'candidate_injected'}" in str(told.value)


def test_arrays_are_opened_from_temporary_dumps_which_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told = "deleted when this Python program ends; tensordiff.compare(…, keep=DIR) keeps them"
    result, kept = (tensordiff.compare({"a": A}, {"a": 2 * A}, keep=keep) for keep in (None, tmp_path))
    with pytest.raises(TensordiffError, match="no terminal") as error:
        result.open()
    assert told in str(error.value)
    with pytest.raises(TensordiffError, match="no terminal") as error:
        kept.open()
    assert told not in str(error.value) and f"tensordiff {tmp_path}/reference {tmp_path}/candidate" in str(error.value)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    commands: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[bytes]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)  # in place of the app: it needs a terminal
    assert (result.open(), kept.open()) == (1, 1)
    assert ["--temporary" in command for command in commands] == [True, False]


def test_nothing_of_the_current_folder_runs_when_the_app_is_opened(
    found: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "importlib.py").write_text("open(__file__ + '.ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr(Result, "_command", lambda _: ["--version"])  # in place of the app: it needs a terminal
    assert found.open() == 0
    assert not (tmp_path / "importlib.py.ran").exists()


def test_the_app_runs_in_this_interpreter_after_max_was_imported(
    found: Result, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr(Result, "_command", lambda _: ["--version"])
    c = ctypes.CDLL(None)
    c.setenv(b"PYTHONEXECUTABLE", b"/nowhere/python", 1)  # as Mojo does: os.environ does not know of it
    try:
        assert found.open() == 0, capfd.readouterr().err
    finally:
        c.unsetenv(b"PYTHONEXECUTABLE")


# --- notebooks ----------------------------------------------------------------------------------------


def test_the_culprit_is_on_top_in_a_notebook(found: Result) -> None:
    page = found._repr_html_()
    table = page[page.index("<tbody>") :]
    assert table.index("layers.1.mlp.act_fn") < table.index("embed_tokens")
    assert page.count("<tr>") == 2 + 60  # headings, the culprit, and as many rows as a notebook shows
    assert "looks like: " in page and any(bar in page for bar in "▅▆▇")


def test_a_name_from_a_stranger_is_text_in_a_notebook() -> None:
    page = tensordiff.compare({"<script>x": A}, {"<script>x": 2 * A})._repr_html_()
    assert "<script" not in page and "&lt;script&gt;x" in page


def test_of_a_long_run_a_notebook_shows_what_is_around_the_culprit() -> None:
    right = {f"layers.{k}": numbers(4, 8, seed=k) for k in range(300)}
    wrong = right | {"layers.200": 1.5 * right["layers.200"]}
    page = tensordiff.compare(right, wrong)._repr_html_()
    assert all(f">layers.{k}<" in page for k in (0, 195, 200, 205))
    assert ">layers.100<" not in page
    assert "240 rows are not shown" in page


# --- sources ------------------------------------------------------------------------------------------


def test_sources_run_in_a_process_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = script(tmp_path, SMALL)
    told: list[str] = []
    found = tensordiff.compare(f"py:{file}:good", f"py:{file}:bad", keep=tmp_path / "kept", progress=told.append)
    assert found.verdict == "diverges"
    assert (tmp_path / "kept" / "reference" / "manifest.json").exists()
    assert any(line.startswith("candidate: ") for line in told)


def test_arrays_beside_a_source(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    file = script(tmp_path, SMALL)
    dump = captured(f"py:{file}:good", tmp_path / "d").dump()
    arrays = {entry.name: np.array(entry.read()) for entry in dump.entries}
    assert tensordiff.compare(arrays, f"py:{file}:good").verdict == "agrees"
    assert tensordiff.compare(f"py:{file}:bad", arrays).verdict == "diverges"


def test_a_source_that_does_not_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "m.py").write_text("def model():\n    raise ValueError('no luck')\n")
    with pytest.raises(TensordiffError, match="no luck"):
        tensordiff.compare(f"py:{tmp_path / 'm.py'}:model", {"a": A})


def test_small_differences_agree() -> None:
    found = tensordiff.compare({"a": A}, {"a": nudged(A, 1e-7)})
    assert found and found.verdict == "agrees" and isinstance(found.rows[0], ResultRow)


def test_two_checkpoints_are_no_runs(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        tensors = {f"model.layers.{k}.mlp.{part}.weight": A for k in range(2) for part in ("up_proj", "down_proj")}
        save_file(tensors, tmp_path / name / "model.safetensors")
    with pytest.raises(TensordiffError, match=r"both sides are checkpoints, not runs; .* tensordiff weights "):
        tensordiff.compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("side", [np.ones(3), [np.ones(3)], 3, None], ids=["array", "list", "number", "none"])
def test_what_is_no_side_is_refused_with_what_would_be_one(side: object) -> None:
    with pytest.raises(TensordiffError, match=r"arrays by name, .*\{'output': array\}"):
        tensordiff.compare(side, {"a": A})  # type: ignore[arg-type]
    with pytest.raises(TensordiffError, match="arrays by name"):
        tensordiff.compare({"a": A}, side)  # type: ignore[arg-type]


def test_a_misspelt_option_is_told_its_name() -> None:
    with pytest.raises(TypeError, match="'treshold'; did you mean 'threshold'"):
        tensordiff.compare({"a": A}, {"a": A}, treshold=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="'promt'; did you mean 'prompt'"):
        tensordiff.compare({"a": A}, {"a": A}, promt="x")  # type: ignore[call-arg]


def test_a_row_by_its_number(found: Result) -> None:
    assert found.culprit is not None
    assert found.row(found.culprit.index).name == found.culprit.name
    with pytest.raises(KeyError, match="no row has the index 1000; there are 76 rows"):
        found.row(1000)
