"""Reruns are paired and judged as the session is: by its rules, from a file or not, and by its tolerances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.align.rules.file import RulesFile
from tensordiff.align.rules.rule import Rule
from tensordiff.capture.child import ReusableChild
from tensordiff.capture.provenance import decode_tokens
from tensordiff.compare.limits import Limits
from tensordiff.dump import open_dump
from tensordiff.search.oracle import search
from tensordiff.session.request import Request
from tensordiff.session.rerun.oracle import RerunOracle
from tensordiff.session.rerun.reruns import Rerunner
from tensordiff.session.session import Session
from tensordiff.session.storage.state import SessionState, write_state
from tests.capture.models import SMALL, run_here, script, tiny_model
from tests.cli.command import Call
from tests.cli.conftest import call as call

pytest.importorskip("torch")
OTHERS = """
def slight():
    net, args, kwargs = good()
    net.blocks[2].scale = 1 + 1e-6
    return net, args, kwargs

class Renamed(Net):
    def __init__(self):
        super().__init__()
        self.stack = self.blocks
        del self.blocks

    def forward(self, x):
        h = self.first(x)
        for block in self.stack:
            h = block(x=h)
        return {"logits": self.last(h), "pair": (h, h.sum())}

def renamed():
    torch.manual_seed(0)
    net = Renamed().eval()
    net.stack[2].act = nn.GELU()
    return net, *good()[1:]

def steps(bug_from):
    net, (x,), kwargs = good()
    for step in range(3):
        if step == bug_from:
            net.blocks[2].scale = 1.5
        yield net, (x + step,), kwargs

def good_steps():
    yield from steps(3)

def bad_steps():
    yield from steps(0)

def late_steps():
    yield from steps(1)
"""
RULES = RulesFile(rules=(Rule("candidate", r"\bstack\.", "blocks."),))


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of a right model, and of some that are not."""
    folder = tmp_path_factory.mktemp("reruns")
    file = script(folder, SMALL + OTHERS)
    for name in ("good", "bad", "slight", "renamed", "good_steps", "bad_steps", "late_steps"):
        run_here(f"py:{file}:{name}", folder / name)
    return folder


@pytest.fixture(scope="module")
def child() -> Iterator[ReusableChild]:
    """A process for all of them, or a new one where another source is run."""
    with ReusableChild() as found:
        yield found


def oracle_over(session: Session, child: ReusableChild) -> RerunOracle:
    return replace(RerunOracle.over(session, lambda run: run.result()), child=child)


def found(session: Session, child: ReusableChild) -> str:
    """What a search by rerun names."""
    oracle = oracle_over(session, child)
    last = list(search(oracle.verdicts().start(), oracle))[-1]
    assert last.first_bad is not None
    return last.points[last.first_bad].name


def test_a_probe_is_judged_by_the_threshold_of_the_request(dumps: Path, child: ReusableChild) -> None:
    limits = Limits(threshold=1e-9)
    request = Request(dumps / "good", dumps / "slight", limits=limits, only=r"blocks\.\d$|^model$")
    assert found(Session.open(request), child).endswith("blocks.2")


def test_a_probe_is_judged_by_the_tolerances_of_the_request(dumps: Path, child: ReusableChild, tmp_path: Path) -> None:
    (tmp_path / "tolerances.toml").write_text("[[tolerance]]\nmatch = 'act$'\nrel_l2 = 100\n")
    request = Request(dumps / "good", dumps / "bad", tolerances=tmp_path / "tolerances.toml")
    session = Session.open(request)
    pair = next(one for one in session.pairs if one.name.endswith("blocks.2.act") and not one.reference.is_input)
    assert oracle_over(session, child).mark(pair) == "good"


def test_a_search_by_rerun_pairs_by_rules_that_are_in_no_file(dumps: Path, child: ReusableChild) -> None:
    request = Request(dumps / "good", dumps / "renamed", only=r"blocks\.\d(\.act)?$|^model$")
    assert found(Session.open(request, SessionState(rules=RULES)), child).endswith("blocks.2.act")


@pytest.mark.parametrize(("candidate", "step"), [("bad_steps", 0), ("late_steps", 1)])
def test_a_search_by_rerun_over_steps_names_the_first_that_is_wrong(
    dumps: Path, child: ReusableChild, candidate: str, step: int
) -> None:
    session = Session.open(Request(dumps / "good_steps", dumps / candidate))
    oracle = oracle_over(session, child)
    last = list(search(oracle.verdicts().start(), oracle))[-1]
    assert last.first_bad is not None
    (pair,) = [pair for pair in session.pairs if pair.index == last.points[last.first_bad].number]
    assert (pair.name, pair.reference.step) == ("blocks.2", step)


def test_injection_pairs_by_rules_that_are_in_no_file(dumps: Path, child: ReusableChild, tmp_path: Path) -> None:
    session = Session.open(Request(dumps / "good", dumps / "renamed"), SessionState(rules=RULES))
    injected = Path(Rerunner(session, tmp_path, child).inject("blocks.2.act").result().path)
    request = Request(dumps / "good", dumps / "renamed", injected=injected)
    rows = Session.open(request, SessionState(rules=RULES)).rows()
    assert [row.pair.name for row in rows if row.injected is not None and row.injected.max_abs > 0]


def test_rules_as_they_are_now_count_not_as_their_file_has_them(
    dumps: Path, child: ReusableChild, tmp_path: Path
) -> None:
    (tmp_path / "rules.toml").write_text("[[rule]]\nside = 'candidate'\nmatch = 'stack'\nreplace = 'nothing'\n")
    session = Session.open(Request(dumps / "good", dumps / "renamed", rules=tmp_path / "rules.toml")).realigned(RULES)
    assert Rerunner(session, tmp_path, child).inject("blocks.2.act").result().entries


def test_verify_injects_by_the_rules_of_a_session_file(call: Call, dumps: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    write_state(kept, SessionState(rules=RULES))
    sides = [f"py:{dumps / 'model_under_test.py'}:{name}" for name in ("good", "renamed")]
    found = json.loads(call("verify", *sides, "-o", tmp_path / "out", "--session", kept, "--json").out)
    assert found["culprit"]["name"].endswith("blocks.2.act")
    assert "blocks.3" in found["victims"]


def test_the_candidate_goes_on_with_the_references_tokens_unless_it_is_asked_something_else(
    tmp_path: Path, child: ReusableChild
) -> None:
    model = tiny_model("llama", tmp_path)
    for name, forced in (("ref", (9, 8)), ("cand", None)):
        run_here(f"hf:{model}", tmp_path / name, input_ids=(5, 17, 42), steps=3, decode_ids=forced)
    session = Session.open(Request(tmp_path / "ref", tmp_path / "cand"))
    rerunner = Rerunner(session, tmp_path / "reruns", child)
    own = decode_tokens(session.candidate, 3)
    assert own != (9, 8)
    again = open_dump(Path(rerunner.capture().result().path))
    assert decode_tokens(again, 3) == (9, 8)
    settings = replace(rerunner.offer("candidate").settings, input_ids=(5, 17, 43))
    assert decode_tokens(open_dump(Path(rerunner.capture(settings=settings).result().path)), 3) != (9, 8)
