"""Driving a binary search from the command line: who judges, the log, and what the search came to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tensordiff.cli.bisect_person import Person
from tensordiff.cli.bisect_summary import print_outcome, why_untold
from tensordiff.cli.opening import opened
from tensordiff.cli.page import Page
from tensordiff.cli.streams import echo, has_person, say
from tensordiff.cli.summary import why_unknown
from tensordiff.cli.table import Table
from tensordiff.errors import BadFile, TensordiffError, WriteError, printable
from tensordiff.report.bisect_json import bisect_json
from tensordiff.report.compare_json import dumps
from tensordiff.search.bisect import ASSUMPTION, Bisect
from tensordiff.search.bisect_outcome import BisectOutcome
from tensordiff.search.monotone import check, search_and_check
from tensordiff.search.oracle import VerdictOracle, search
from tensordiff.session import Request, Session
from tensordiff.state import read_state

if TYPE_CHECKING:
    from tensordiff.rerun import RerunOracle

_LONGEST_LOG = 1 << 24


class Wish(NamedTuple):
    """Who judges, and where marks are kept."""

    auto: bool = False
    log: Path | None = None
    replay: Path | None = None
    as_json: bool = False
    rerun: bool = False

    @property
    def asks_nobody(self) -> bool:
        """Whether no person is needed."""
        return self.auto or self.rerun


def bisect(request: Request, wish: Wish) -> int:
    """Search and report; the exit status. Raises, all being printed, where it could not be told."""
    session = opened(request)
    nothing = session.outcome(())
    if not session.pairs:
        raise why_unknown(session, nothing)
    rerun = _rerun(session) if wish.rerun else None
    oracle = rerun.places() if rerun else VerdictOracle.over(session.engine, session.pairs)
    state = _begin(oracle, wish, request.session)
    _introduce(session, state, wish)
    if rerun is not None:
        state = _run_again(state, rerun, wish)
    else:
        state = _judge(session, state, oracle, wish) if wish.auto else _ask(state, oracle, wish)
    outcome = BisectOutcome(state, oracle, check(state, oracle) if wish.auto and not rerun else None, nothing.unread)
    _report(session, outcome, wish)
    if outcome.verdict == "unknown":
        raise why_untold(outcome, wish.log)
    return outcome.exit_status


def _begin(oracle: VerdictOracle, wish: Wish, session: Path | None) -> Bisect:
    """The search as the log left it, or the session."""
    state = oracle.start()
    if wish.replay is not None:
        state = _replay(state, wish.replay)
    elif session is not None:
        state = _replay_log(state, read_state(session).bisect, session)
    if not (state.is_done or wish.asks_nobody or has_person()):
        raise TensordiffError("bisect asks a person, and there is no terminal to ask on; judge by verdict with --auto")
    if wish.log is not None:
        if wish.log.exists() and not (wish.replay and wish.log.samefile(wish.replay)):
            go_on = f"go on from it with --replay {printable(wish.log)}"
            raise WriteError(f"{printable(wish.log)}: is there already; give --log another name, or {go_on}")
        _write(wish.log, state)
    return state


def _replay(state: Bisect, path: Path) -> Bisect:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            log = file.read(_LONGEST_LOG + 1)
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror or error}); give a log that --log wrote") from error
    if len(log) > _LONGEST_LOG:
        raise BadFile(path, "is too long to be a log; give one that --log wrote")
    return _replay_log(state, log, path)


def _replay_log(state: Bisect, log: str, path: Path) -> Bisect:
    try:
        return state.replay(log)
    except TensordiffError as error:
        raise BadFile(path, str(error)) from error


def _introduce(session: Session, state: Bisect, wish: Wish) -> None:
    """What is searched, and under which assumption."""
    if wish.as_json and wish.asks_nobody:
        return
    lines = [
        f"{len(state.places)} places, {len(state.suspects)} suspects, roughly {state.steps} steps",
        f"assuming that {ASSUMPTION}",
    ]
    if session.alignment.order_from == "names":
        lines.append("in the order of their names: neither dump says in which order its layers ran")
    tell = echo if wish.asks_nobody else say
    for line in lines:
        tell(line)


def _judge(session: Session, state: Bisect, oracle: VerdictOracle, wish: Wish) -> Bisect:
    """By verdict: a line for each pair that is read."""
    table = None if wish.as_json else Table(session, Page.here())
    if table:
        table.headings()
    shown = 0
    for reached in _kept(search_and_check(state, oracle), wish):
        state, shown = reached, _show_new(table, oracle, shown)
    check(state, oracle)
    _show_new(table, oracle, shown)
    return state


def _rerun(session: Session) -> RerunOracle:
    from tensordiff.cli.capturing import quietly
    from tensordiff.rerun import RerunOracle

    return RerunOracle.over(session, quietly)


def _run_again(state: Bisect, oracle: RerunOracle, wish: Wish) -> Bisect:
    """By rerun: a line for each. All are made by one process, which loads the candidate once."""
    from tensordiff.capture.standby import Standby

    with Standby() as standby:
        for reached in _kept(search(state, replace(oracle, standby=standby)), wish):
            state = reached
            mark, position = state.marks[-1]
            if not wish.as_json:
                echo(f"{mark:4}  {printable(state.places[position].name)}  ({len(state.suspects)} suspects left)")
    if not wish.as_json and (sentence := oracle.told(state)):
        echo(sentence)
    return state


def _show_new(table: Table | None, oracle: VerdictOracle, shown: int) -> int:
    """Print the rows measured since; how many there are in all."""
    if table:
        for row in islice(oracle.rows.values(), shown, None):
            table.row(row)
    return len(oracle.rows)


def _ask(state: Bisect, oracle: VerdictOracle, wish: Wish) -> Bisect:
    """By a person. What they said is not lost when they stop."""
    try:
        for reached in _kept(search(state, Person(oracle)), wish):
            state = reached
    finally:
        if not state.is_done and wish.log is None and state.marks:
            say(f"\n{state.log()}")
    return state


def _kept(states: Iterator[Bisect], wish: Wish) -> Iterator[Bisect]:
    """States, each in the log before anything else is done with it."""
    for state in states:
        if wish.log is not None:
            _write(wish.log, state)
        yield state


def _write(path: Path, state: Bisect) -> None:
    from tensordiff.align.rules_writing import put  # with it comes tomlkit, which nothing else here needs

    put(path, state.log())


def _report(session: Session, outcome: BisectOutcome, wish: Wish) -> None:
    if wish.as_json:
        echo(dumps(bisect_json(outcome)))
    else:
        print_outcome(Page.here(), session, outcome)
