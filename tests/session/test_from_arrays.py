"""Sessions of arrays in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import Rule
from tensordiff.errors import TensordiffError
from tensordiff.session.from_arrays import dump_of_arrays, session_of
from tests.making import numbers, write

A = numbers(3, 4)


def test_arrays_are_a_dump_in_the_order_they_are_given() -> None:
    dump = dump_of_arrays("mine", {"b": A, "a": [1, 2]})
    assert [entry.name for entry in dump.entries] == ["b", "a"] and dump.ordered and dump.path == Path("mine")


def test_what_is_no_array_by_name_is_refused() -> None:
    record = np.zeros(3, [("a", "f4")])
    for arrays, told in (
        ({"x": record}, "'x': is of type"),
        ({1: A}, "1: is not the name of a tensor"),
        ({b"x": A}, "names are"),
    ):
        with pytest.raises(TensordiffError, match=told):
            session_of(arrays, arrays)  # type: ignore[arg-type]


def test_third_dumps_in_memory_follow_other_rules_too() -> None:
    third = {"port.a": A}
    session = session_of({"a": A}, {"a": A, "port.a": A}, injected={"a": A, **third}, golden={"a": A, **third})
    rules = RulesFile(rules=(Rule("reference", "^a$", "port.a"),))
    session = session.realigned(rules)
    for dump in (session.comparer.injected, session.comparer.golden):
        assert dump is not None and [entry.name for entry in dump.entries.values()] == ["port.a"]


def test_a_source_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(TensordiffError, match="hf:some/model: is a source, and was not run"):
        session_of(write(tmp_path / "d", {"a": A}), "hf:some/model")
