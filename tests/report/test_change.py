"""What got better and what got worse between two comparisons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.errors import BadFile
from tensordiff.report import write_report
from tensordiff.report.change import (
    Change,
    change,
    change_json,
    change_markdown,
    change_text,
    headline,
    read_comparison,
)
from tests.making import nudged, numbers
from tests.report.comparisons import HOSTILE, compared

A = numbers(4, 16)
Tensors = dict[str, Array]


@pytest.fixture
def between(tmp_path: Path) -> Any:
    def make(before: Tensors, after: Tensors, reference: Tensors | None = None) -> Change:
        paths = tmp_path / "before.json", tmp_path / "after.json"
        for path, candidate in zip(paths, (before, after), strict=True):
            ours = reference or dict.fromkeys(candidate, A)
            write_report(*compared({name: ours[name] for name in candidate if name in ours}, candidate), path)
        return change(*map(read_comparison, paths))

    return make


def test_nothing_changed(between: Any) -> None:
    found = between({"a": nudged(A, 1e-7)}, {"a": nudged(A, 9e-7)})
    assert (found.worse, found.better, found.exit_status()) == ((), (), 0)
    assert headline(found) == "Nothing changed that matters; nothing diverges, before or now."


def test_a_verdict_that_got_worse(between: Any) -> None:
    found = between({"a": A, "b": A}, {"a": A, "b": -A})
    assert [str(row.key) for row in found.worse] == ["b"]
    assert found.exit_status() == 1
    assert headline(found) == "Worse: 1 pair got worse and 0 better; the culprit is now b; there was none."


def test_a_verdict_that_got_better(between: Any) -> None:
    found = between({"a": A, "b": -A}, {"a": A, "b": A})
    assert [str(row.key) for row in found.better] == ["b"]
    assert found.exit_status() == 0
    assert headline(found) == "Better: 1 pair got better and none worse; the culprit b is gone."


def test_an_error_that_grew_under_the_same_verdict(between: Any) -> None:
    assert len(between({"a": nudged(A, 1e-2)}, {"a": nudged(A, 5e-2)}).worse) == 1
    assert not between({"a": nudged(A, 1e-2)}, {"a": nudged(A, 1.5e-2)}).worse


def test_nan_is_worse_than_any_number(between: Any) -> None:
    found = between({"a": nudged(A, 1e-2)}, {"a": A * float("nan")})
    assert len(found.worse) == 1
    assert not found.better


def test_new_and_gone(between: Any) -> None:
    found = between({"a": A, "old": A}, {"a": A, "new": A})
    assert [str(place) for place, _ in found.new] == ["new"]
    assert [str(place) for place in found.gone] == ["old"]
    assert (found.exit_status(), found.exit_status(allow_partial=True)) == (2, 0)


def test_a_new_pair_that_diverges_is_worse(between: Any) -> None:
    assert between({"a": A}, {"a": A, "new": -A}).exit_status() == 1


def test_a_comparison_that_cannot_tell_any_more(between: Any) -> None:
    found = between({"a": A}, {"a": A}, {"a": A})
    lost = between({"a": A}, {"b": numbers(3)}, {"a": A, "b": A})
    assert (found.exit_status(), lost.exit_status()) == (0, 2)


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_do_no_harm(between: Any, name: str) -> None:
    found = between({"a": A, name: A}, {"a": A, name: -A, f"{name}.new": A})
    for text in (change_text(found), change_markdown(found)):
        assert all(line.isprintable() for line in text.split("\n"))
    assert "<script" not in change_markdown(found)
    assert change_json(found)["worse"][0]["name"] == name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a comparison"),
        ('{"schema": "tensordiff.compare/1"}', "is not a whole comparison"),
        (
            f'{{"schema": "tensordiff.compare/1", "verdict": "{"a" * 10_000}", "culprit": null, "pairs": []}}',
            "is not a whole comparison",
        ),
        (
            '{"schema": "tensordiff.compare/1", "verdict": "agrees", "culprit": null, "pairs": '
            '[{"name": "", "port": "", "step": 1e999, "call": 1, "index": 0}]}',
            "is not a whole comparison",
        ),
        ('{"schema": "tensordiff.compare/1", "verdict": "odd", "pairs": [], "culprit": null}', "verdict 'odd'"),
    ],
)
def test_files_that_are_no_comparison(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(BadFile, match=said) as caught:
        read_comparison(path)
    assert len(str(caught.value)) < 1000


def test_strict_json_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_report(*compared({"a": A}, {"a": A * float("inf")}), path)
    assert json.loads(path.read_text())["pairs"][0]["diff"]["rel_l2"] in ("inf", "nan")
    (seen,) = read_comparison(path).pairs.values()
    assert seen.verdict == "diverges"
