"""An injected run must be of the candidate and of this reference: where manifests say otherwise it is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import AlignError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.cli.command import Call, assert_one_sentence
from tests.cli.conftest import call as call
from tests.making import numbers, save, write

FACTS: dict[str, Any] = {"source": "py:/net.py:port", "weights_hash": "sha256:aa", "token_ids": [1, 2, 3]}
A = numbers(4, 4)


def sides(folder: Path, **candidate: Any) -> tuple[Path, Path]:
    """A reference, and a candidate that is wrong."""
    ours = write(folder / "reference", {"a-input_0": A, "a-output": A})
    return ours, write(folder / "candidate", {"a-input_0": A, "a-output": -A}, **{**FACTS, **candidate})


def injected_run(folder: Path, names: tuple[str, ...] | None = ("a-input_0",), **facts: Any) -> Path:
    with DumpWriter(folder / "injected", {**FACTS, **facts}) as writer:
        writer.add("a-input_0", A, injected=names)
        writer.add("a-output", A, injected=names)
    return folder / "injected"


def refusal(reference: Path, candidate: Path, injected: Path) -> str:
    """The sentence, which is the same whether the run is given at once or later."""
    with pytest.raises(AlignError) as at_once:
        Session.open(Request(reference, candidate, injected=injected))
    with pytest.raises(AlignError) as later:
        Session.open(Request(reference, candidate)).with_injected(injected)
    assert str(at_once.value) == str(later.value)
    return str(later.value)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            {"source": "py:/fixed/net.py:port"},
            "its source is py:/fixed/net.py:port, the candidate's is py:/net.py:port",
        ),
        ({"source": "py:/net.py:fixed"}, "its source is py:/net.py:fixed"),
        ({"weights_hash": "sha256:bb"}, "its hash of the weights is sha256:bb, the candidate's is sha256:aa"),
        ({"token_ids": [1, 2, 4]}, "its list of tokens is [1, 2, 4], the candidate's is [1, 2, 3]"),
    ],
    ids=["another file", "another function", "weights", "tokens"],
)
def test_a_run_of_something_else_is_refused_and_what_differs_is_named(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    sentence = refusal(*sides(tmp_path), injected_run(tmp_path, **other))
    assert sentence.startswith(f"{tmp_path / 'injected'}: is not a run of the candidate: {said}")


def test_a_run_of_the_candidate_is_taken(tmp_path: Path) -> None:
    session = Session.open(Request(*sides(tmp_path), injected=injected_run(tmp_path)))
    assert [row.injected is not None for row in session.rows()] == [True, True]
    assert [finding for finding in session.header_findings() if finding.where == "injected"] == []


def test_a_checkpoint_that_lies_elsewhere_is_the_same_by_its_weights(tmp_path: Path) -> None:
    injected = injected_run(tmp_path, source="hf:/b/llama")
    Session.open(Request(*sides(tmp_path / "same", source="hf:/a/llama"), injected=injected))
    assert "its source is hf:/b/llama" in refusal(*sides(tmp_path / "other kind", source="max:/b/llama"), injected)
    without = sides(tmp_path / "no hash", source="hf:/a/llama", weights_hash=None)
    assert "its source is hf:/b/llama" in refusal(*without, injected)


def test_a_capture_without_injection_is_refused(tmp_path: Path) -> None:
    assert "was captured without injection" in refusal(*sides(tmp_path), injected_run(tmp_path, None))
    reference, candidate = sides(tmp_path / "again")
    assert "was captured without injection" in refusal(reference, candidate, candidate)


def test_a_run_on_another_reference_s_inputs_is_refused(tmp_path: Path) -> None:
    sentence = refusal(*sides(tmp_path), injected_run(tmp_path, ("other.layer-input_0",)))
    assert "was given the inputs of another reference, for other.layer-input_0 is not in" in sentence


def test_a_dump_that_says_nothing_is_taken_with_a_finding(call: Call, tmp_path: Path) -> None:
    foreign = save(tmp_path / "injected.safetensors", {"a-input_0": A, "a-output": -A})
    reference, candidate = sides(tmp_path)
    session = Session.open(Request(reference, candidate, injected=foreign))
    (finding,) = [finding for finding in session.header_findings() if finding.where == "injected"]
    assert finding.level == "note" and "does not say which model it is a run of" in finding.what
    said = call("compare", reference, candidate, "--injected", foreign, "--json")
    assert said.status == 1
    assert any("does not say which model" in one["what"] for one in json.loads(said.out)["lint"])


def test_the_command_refuses_with_status_2(call: Call, tmp_path: Path) -> None:
    reference, candidate = sides(tmp_path)
    injected = injected_run(tmp_path, weights_hash="sha256:bb")
    assert_one_sentence(call("compare", reference, candidate, "--injected", injected), "is not a run of the candidate")


def test_verify_leaves_a_run_out_that_only_lies_beside_the_candidate(call: Call, tmp_path: Path) -> None:
    reference, candidate = sides(tmp_path)
    injected_run(tmp_path, source="py:/net.py:fixed").rename(tmp_path / "candidate_injected")
    said = call("verify", reference, candidate, "-o", tmp_path / "out")
    assert said.status == 1
    assert "the scenario with injection was left out: " in said.err and "is not a run of the candidate" in said.err
