"""Dumps of other engines without rules: nobody is blamed, and what has a counterpart is paired."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from studies.scrambled import renamed, scheme
from tensordiff.align.index import parts_of
from tensordiff.align.rules.file import RulesFile, read_rules_file, write_rules_file
from tensordiff.dump import Entry, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.counterparts import TABLES, counterparts

SHARED = Path(__file__).resolve().parents[4] / "shared" / "engines" / "dumps"
pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the dumps of other engines are not beside this checkout")


def compared(case: str, *, learn: bool = True) -> Session:
    return Session.open(Request(SHARED / case / "hf", SHARED / case / "cand", learn=learn))


def parts(entry: Entry) -> tuple[str, ...]:
    return tuple(part.name for part in parts_of(entry))


def are_same(made: tuple[str, ...], of: tuple[str, ...], values: Mapping[str, Array]) -> bool:
    """Whether these are the tensors that a table lists; a module and the last of its parts give the same one."""
    return len(made) == len(of) and all(np.array_equal(values[a], values[b]) for a, b in zip(made, of, strict=True))


@pytest.mark.parametrize("case", TABLES)
def test_nobody_is_blamed_and_nearly_all_that_the_tables_of_names_list_is_paired_so(case: str) -> None:
    session = compared(case)
    outcome = session.outcome(session.rows())
    assert outcome.culprit is None, outcome.culprit.pair
    step = session.alignment.pairs[0].reference.step
    pairs = [pair for pair in session.alignment.pairs if pair.reference.step == step]
    made = {name: parts(pair.reference) for pair in pairs for name in parts(pair.candidate)}
    values = {entry.name: entry.read() for entry in session.reference.entries if entry.step == step}
    listed = list(counterparts(case, 2))
    missing = [(name, of) for name, of in listed if not are_same(made.get(name, ()), of, values)]
    assert len(listed) > 20 and len(missing) <= 0.05 * len(listed), missing


@pytest.mark.parametrize("case", ["export-unflatten", "vllm-gpt2"])
def test_without_learning_somebody_is_blamed(case: str) -> None:
    session = compared(case, learn=False)
    assert session.outcome(session.rows()).culprit is not None


@pytest.mark.parametrize("seed", [None, 1, 6])
@pytest.mark.parametrize("case", [*TABLES, "vllm-hooks-skipped"])
def test_what_is_written_pairs_the_same_without_learning(case: str, seed: int | None, tmp_path: Path) -> None:
    reference, candidate = (open_dump(SHARED / case / side) for side in ("hf", "cand"))
    if seed is not None:
        candidate = renamed(candidate, scheme(candidate, random.Random(seed)))
    found = PairedDumps.align(reference, candidate, RulesFile(), learns=True)
    path = tmp_path / "rules.toml"
    write_rules_file(path, found.kept_rules())
    written = read_rules_file(path)
    again = PairedDumps.align(reference, candidate, written)
    assert paired(again) == paired(found)
    if seed is not None:
        assert written.rules and len(written.maps) < 0.7 * len(found.learned.rules)


def paired(dumps: PairedDumps) -> set[tuple[tuple[str, ...], tuple[str, ...], int]]:
    return {(parts(pair.reference), parts(pair.candidate), pair.reference.step) for pair in dumps.alignment.pairs}


def test_llamacpp_is_paired_as_its_table_of_names_says() -> None:
    found = {rule.map.candidate: rule.map.reference for rule in compared("llamacpp").dumps.learned.rules}
    block = "model.model.layers.{i}"
    assert found["blk.{i}.Qcur"] == f"flatten(interleave(heads({block}.self_attn.q_proj, 4)), -2, -1)"
    assert found["blk.{i}.Vcur"] == f"{block}.self_attn.v_proj"
    assert found["blk.{i}.kqv_out"] == f"{block}.self_attn.o_proj-input_0"
    assert found["blk.{i}.ffn_inp"] == f"{block}.post_attention_layernorm-input_0"
    assert found["blk.{i}.l_out"] == block
    assert found["result_norm"] == "model.model.norm"
