"""JUnit XML that any CI can read, whatever the names."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tensordiff.report.junit import junit
from tests.making import numbers
from tests.report.comparisons import HOSTILE, compared, samples

A = numbers(2, 6)


def suite(text: str) -> ElementTree.Element:
    found = ElementTree.fromstring(text).find("testsuite")
    assert found is not None
    return found


def test_a_case_a_pair_and_a_failure_a_divergence() -> None:
    found = suite(junit(samples()[1], "sample"))
    assert {key: found.get(key) for key in ("tests", "failures", "errors")} == {
        "tests": "76", "failures": "5", "errors": "0",
    }  # fmt: skip
    (culprit,) = (case for case in found.iter("testcase") if case.get("name") == "layers.1.mlp.act_fn")
    failure = culprit.find("failure")
    assert failure is not None
    assert "even when given the reference's inputs" in str(failure.get("message"))
    assert len(list(found.iter("failure"))) == 5


def test_a_pair_that_cannot_be_read_is_an_error() -> None:
    found = suite(junit(compared({"a": A}, {"a": None})[1], "x"))
    assert (found.get("tests"), found.get("errors")) == ("1", "1")


def test_no_pairs_are_no_success() -> None:
    found = suite(junit(compared({"a": A}, {"b": numbers(3)})[1], "x"))
    assert (found.get("tests"), found.get("errors")) == ("1", "1")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_names_are_text(name: str) -> None:
    text = junit(compared({name: A}, {name: -A})[1], name)
    found = suite(text.encode("utf-8", "backslashreplace").decode())
    assert [case.tag for case in found] == ["testcase", "system-out"]
    assert str(found[0].get("name")).isprintable()
