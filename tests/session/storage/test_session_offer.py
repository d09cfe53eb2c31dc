"""A session file that came with a dump: offered once, shown whole, and never touched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tensordiff.align.rules.file import RulesFile, parse_rules_text
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.session_offer import SessionOffer, contents, find_session_offer, record_answer
from tensordiff.session.storage.state import SCHEMA, SUFFIX, SessionState, write_state
from tests.making import numbers, save

RULES = """
[[rule]]
side = "candidate"
match = "^old"
replace = "new"

[[map]]
reference = "a"
candidate = "b"

[[view]]
match = "^h$"
candidate = "last_token"

[[tolerance]]
match = "."
rel_l2 = 1e9
"""
LOOSE = SessionState(rules=parse_rules_text(RULES, "rules"))


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two dumps that differ; the user's state folder is empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "dumps").mkdir()
    names = ("torch.safetensors", "max.safetensors")
    ours, theirs = (save(tmp_path / "dumps" / name, {"a": numbers(8, seed=k)}) for k, name in enumerate(names))
    return ours, theirs


def beside(pair: tuple[Path, Path]) -> Path:
    """Where versions before kept a session."""
    return pair[1].parent / f"max.safetensors.vs.torch.safetensors{SUFFIX}"


def test_nothing_beside_is_nothing_offered(pair: tuple[Path, Path]) -> None:
    assert find_session_offer(*pair) is None


def test_what_lies_beside_is_offered_until_it_is_answered(pair: tuple[Path, Path]) -> None:
    write_state(beside(pair), LOOSE)
    offered = find_session_offer(*pair)
    assert offered == SessionOffer(beside(pair), LOOSE)
    before = beside(pair).read_bytes()
    assert isinstance(offered, SessionOffer)
    record_answer(*pair, offered)
    assert find_session_offer(*pair) is None
    assert beside(pair).read_bytes() == before and len(list(pair[1].parent.iterdir())) == 3
    write_state(beside(pair), SessionState(filter="another"))
    assert isinstance(find_session_offer(*pair), SessionOffer)


def test_one_that_an_earlier_version_kept_elsewhere_is_offered_too(pair: tuple[Path, Path], tmp_path: Path) -> None:
    import hashlib
    import os

    digest = hashlib.sha256(os.fsencode(f"{pair[0]}{os.pathsep}{pair[1]}")).hexdigest()[:12]
    path = tmp_path / "state" / "tensordiff" / "sessions" / f"max.safetensors.vs.{digest}{SUFFIX}"
    write_state(path, LOOSE)
    assert find_session_offer(*pair) == SessionOffer(path, LOOSE)


def test_no_command_takes_it(pair: tuple[Path, Path]) -> None:
    write_state(beside(pair), LOOSE)
    session = Session.open(Request(*pair))
    assert session.rules == RulesFile()
    assert session.outcome(session.rows()).verdict == "diverges"
    named = Session.open(Request(*pair, session=beside(pair)))
    assert named.rules == LOOSE.rules and named.outcome(named.rows()).verdict == "agrees"


def test_all_of_it_is_shown() -> None:
    state = SessionState(
        rules=LOOSE.rules, rules_base=parse_rules_text("[[tolerance]]\nmatch = 'strict'\nrel_l2 = 1e-9\n", "rules"),
        marks=("row one",), bisect="good x", columns=("layer",), sort="mse", filter="!culprit", faults=True,
        inputs=True, notes={"a.b": "all is well"},
    )  # fmt: skip
    shown = contents(state)
    for text in (
        "^old", "new", 'reference = "a"', "last_token", "rel_l2 = 1e9", "strict", "row one", "good x", "layer", "mse",
        "!culprit", "only what does not agree", "inputs too", "all is well",
    ):  # fmt: skip
        assert text in shown.replace("1000000000.0", "1e9"), text


def test_nothing_in_it_is_a_control_character() -> None:
    state = SessionState(notes={"\x1b[2J": "a\x1b]52;c;\x07\u202e"}, filter="\r\x1b[1A", marks=("\x9b",))
    assert all(line.isprintable() for line in contents(state).split("\n"))
    assert contents(SessionState()) == "no rules and no tolerances"


LONG = json.dumps({"schema": SCHEMA, "notes": {"a": "b" * 300_000}})


@pytest.mark.parametrize("text", ["", "{", "[]", LONG], ids=["empty", "cut", "list", "long"])
def test_what_cannot_be_shown_is_told_and_left(pair: tuple[Path, Path], text: str) -> None:
    beside(pair).write_text(text)
    said = find_session_offer(*pair)
    assert isinstance(said, str) and str(beside(pair)) in said and "left as it is" in said
    assert beside(pair).read_text() == text and len(list(pair[1].parent.iterdir())) == 3


def test_an_answer_that_cannot_be_kept_is_asked_for_again(pair: tuple[Path, Path], tmp_path: Path) -> None:
    write_state(beside(pair), LOOSE)
    offered = find_session_offer(*pair)
    assert isinstance(offered, SessionOffer)
    (tmp_path / "state").write_text("")
    record_answer(*pair, offered)
    assert find_session_offer(*pair) == offered
