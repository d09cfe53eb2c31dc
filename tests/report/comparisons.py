"""Comparisons that the tests of reports share, made of dumps in memory or on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tensordiff.dump.dtypes import Array
from tensordiff.report.formats import render_for
from tensordiff.report.model import ReportModel, build_report
from tensordiff.search.outcome import Outcome
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.third_dumps import ThirdDumps
from tests.making import SAMPLES, held

FORMATS = (".md", ".html", ".json", ".txt", ".csv", ".png")

HOSTILE = (
    "<script>alert(1)</script>", "blocks[/0]", "a|b", "one\ntwo", "`tick` **bold**", "=cmd|' /C calc'!A0",
    "</script><img src=x onerror=alert(1)>", "\x1b[31mred", "$x^{2}$", "a\ud800b", "@everyone", "語" * 30, "&lt;b&gt;",
    '"><svg onload=alert(1)>', "]]>", "<!--", "[link](javascript:alert(1))", "+1", "-1", "\u202eabc", "\0",
)  # fmt: skip

Tensors = Mapping[str, Array | None]


def compared(reference: Tensors, candidate: Tensors, injected: Tensors | None = None) -> tuple[Session, Outcome]:
    """A session of two dumps in memory, and what it came to."""
    ref, cand = held(reference), held(candidate)
    third = ThirdDumps(injected=None if injected is None else held(injected))
    session = Session.of_dumps(Request(Path("reference"), Path("candidate")), ref, cand, third)
    return session, session.outcome(session.rows())


def samples(*, injected: bool = True) -> tuple[Session, Outcome]:
    """The sample dumps, which hide a planted bug."""
    beside = SAMPLES / "candidate_injected" if injected else None
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / "candidate", injected=beside))
    return session, session.outcome(session.rows())


def written(model: ReportModel, suffix: str) -> bytes:
    """A report in one format."""
    found = render_for(f"r{suffix}")(model)
    return found if isinstance(found, bytes) else found.encode()


def report(session: Session, outcome: Outcome, suffix: str) -> str:
    """A report of everything, as text."""
    return written(build_report(session, outcome), suffix).decode()
