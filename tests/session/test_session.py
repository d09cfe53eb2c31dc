"""A session: what it opens, what it leaves alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tensordiff.compare.measure.scheduler import FIRST
from tensordiff.dump.readers.npy import NpyFile
from tensordiff.errors import NotADump, TensordiffError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import SAMPLES, numbers, save, save_npy, truncate, write

REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "candidate"


def test_opening_reads_no_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {f"a.{i}": numbers(4) for i in range(50)}
    one, other = save(tmp_path / "r.safetensors", tensors), save_npy(tmp_path / "c", tensors)
    monkeypatch.setattr(NpyFile, "read", lambda _: pytest.fail("read"))
    session = Session.open(Request(one, other, injected=other, golden=other))
    assert len(session.pairs) == 50


def test_rows_are_measured_a_few_at_a_time(tmp_path: Path) -> None:
    made = save_npy(tmp_path / "d", {f"a{k:02}": numbers(4) for k in range(FIRST + 1)})
    rows = Session.open(Request(made, made)).rows()
    assert next(rows).verdict.name == "agrees"
    truncate(made / f"a{FIRST:02}.npy")
    assert [row.verdict.name for row in rows] == ["agrees"] * (FIRST - 1) + ["unknown"]


def test_pairs_keep_their_numbers_when_some_are_asked_for() -> None:
    session = Session.open(Request(REFERENCE, CANDIDATE, only="act_fn$"))
    assert [pair.index for pair in session.pairs] == [25, 26, 56, 57]


def test_a_step_is_asked_for() -> None:
    assert Session.open(Request(REFERENCE, CANDIDATE, step=1)).pairs == ()
    assert len(Session.open(Request(REFERENCE, CANDIDATE, step=0)).pairs) == 76


def test_names_are_indexed_once_for_an_alignment(tmp_path: Path) -> None:
    session = Session.open(Request(REFERENCE, CANDIDATE))
    indexes = session.dumps.names.both
    for other in (session.with_threshold(1e-3), session.with_rules_file(tmp_path / "r.toml", session.rules)):
        assert other.dumps.names.both is indexes and other.alignment is session.alignment
    assert session.realigned(session.rules).dumps.names.both is not indexes


def test_a_path_that_looks_like_a_source_but_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(Path("max:d.safetensors"), {"a": numbers(4)})
    assert len(Session.open(Request(Path("max:d.safetensors"), Path("max:d.safetensors"))).pairs) == 1


def test_a_source_says_what_to_do_instead() -> None:
    with pytest.raises(TensordiffError, match="is a source, and was not run; tensordiff capture"):
        Session.open(Request(Path("hf:a/b"), CANDIDATE))


def test_a_third_dump_must_exist() -> None:
    with pytest.raises(NotADump):
        Session.open(Request(REFERENCE, CANDIDATE, golden=Path("nowhere")))


def test_files_that_could_not_be_read_are_in_the_outcome(tmp_path: Path) -> None:
    save(tmp_path / "c" / "a.safetensors", {"a": numbers(64)})
    truncate(save(tmp_path / "c" / "b.safetensors", {"b": numbers(64)}))
    session = Session.open(Request(tmp_path / "c", tmp_path / "c"))
    outcome = session.outcome(session.rows())
    assert len(outcome.unread) == 2
    assert outcome.unread[0].startswith(str(tmp_path / "c" / "b.safetensors"))
    assert outcome.verdict == "unknown"


def verdict_of(dump: Path, **options: bool) -> str:
    """What a dump compared with itself comes to."""
    session = Session.open(Request(dump, dump, **options))  # type: ignore[arg-type]
    return session.outcome(session.rows()).verdict


def test_a_file_of_a_step_that_could_not_be_read_is_not_said_to_agree(tmp_path: Path) -> None:
    for step in ("0", "1"):
        save(tmp_path / step / "a.safetensors", {"a": numbers(64)})
    assert verdict_of(tmp_path) == "agrees"
    truncate(save(tmp_path / "1" / "b.safetensors", {"b": numbers(64)}))
    assert verdict_of(tmp_path) == "unknown"


def test_a_tensor_that_two_files_have_is_compared_once_and_said_to_be_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        save(tmp_path / f"rank{rank}.safetensors", {"a": numbers(64, seed=rank)})
    assert verdict_of(tmp_path) == "unknown"


@pytest.mark.parametrize(("link", "verdict"), [("b.safetensors", "unknown"), ("notes.txt", "agrees")])
def test_a_link_that_leads_nowhere(tmp_path: Path, link: str, verdict: str) -> None:
    save(tmp_path / "a.safetensors", {"a": numbers(64)})
    (tmp_path / link).symlink_to("gone")
    assert verdict_of(tmp_path) == verdict


def test_a_file_that_the_dump_itself_names_and_that_is_not_there(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "reference" / "0", tmp_path / "d")
    assert verdict_of(tmp_path / "d") == "agrees"
    (tmp_path / "d" / "model.lm_head-output.pt").unlink()
    assert verdict_of(tmp_path / "d") == "unknown"


def test_a_journal_that_is_damaged_or_whose_tensors_are_cut_off(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", {"a": numbers(64), "b": numbers(64)})
    manifest = json.loads((folder / "manifest.json").read_text())
    first, second = map(json.dumps, manifest.pop("entries"))
    (folder / "manifest.json").unlink()
    journal = folder / "entries.jsonl"
    journal.write_text("\n".join((json.dumps({"schema": manifest["schema"], "facts": {}}), first, second, "")))
    assert verdict_of(folder) == "unknown"
    assert verdict_of(folder, allow_partial=True) == "agrees"
    whole = journal.read_text()
    journal.write_text(whole.replace(second, second[:-5]))
    assert verdict_of(folder, allow_partial=True) == "unknown"
    journal.write_text(whole)
    truncate(folder / "tensors-00000.safetensors", lambda size: size - 8)
    assert verdict_of(folder, allow_partial=True) == "unknown"
