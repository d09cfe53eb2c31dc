"""``tensordiff bisect``: binary search for the first bad layer, judged by a person, by verdicts or by reruns.

The person is asked on stderr, so that the result on stdout can be piped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click

from tensordiff.capture.child import ReusableChild
from tensordiff.cli.consent import tell_offer, trust_option, with_consent
from tensordiff.cli.options import (
    PATH,
    comparison_options,
    json_option,
    keep_option,
    make_request,
    source_options,
    take,
    two_sides,
)
from tensordiff.cli.sources import follow_quietly, open_dumps, run_sources
from tensordiff.cli.streams import Page, ask, echo, has_person, say
from tensordiff.cli.summary import inconclusive_error
from tensordiff.cli.table import Table
from tensordiff.compare.row import Row
from tensordiff.errors import BadFile, TensordiffError, WriteError, printable
from tensordiff.report.comparison_json import bisect_json, dumps
from tensordiff.report.labels import COLOURS, GLYPHS, counted, label, number, sparkline
from tensordiff.search.bisect import ASSUMPTION, Bisect
from tensordiff.search.bisect_outcome import BisectOutcome, NeighbourCheck, check_neighbours, search_and_check
from tensordiff.search.oracle import Answer, VerdictOracle, search
from tensordiff.session.quantized import taken_weights
from tensordiff.session.request import Request
from tensordiff.session.rerun.oracle import RerunOracle
from tensordiff.session.session import Session
from tensordiff.session.storage.state import read_state
from tensordiff.session.weights import refuse_checkpoints
from tensordiff.util.atomic_write import write_file
from tensordiff.util.shell_line import shell_line
from tensordiff.util.text_width import wrap

_LONGEST_LOG = 1 << 24  # characters
_SHOWN = 4
_BARS = 32
ANSWERS: dict[str, Answer] = {"good": "good", "bad": "bad", "skip": "skip", "undo": "undo"}
_WORDS = (*ANSWERS, "log", "quit")
_PROMPT = f"{', '.join(_WORDS)}? "


class BisectOptions(NamedTuple):
    """Who judges, and where marks are written."""

    auto: bool = False
    log: Path | None = None
    replay: Path | None = None
    as_json: bool = False
    rerun: bool = False
    trust_source: bool = False

    @property
    def is_automatic(self) -> bool:
        """Whether nobody is asked."""
        return self.auto or self.rerun


@click.command("bisect")
@two_sides
@comparison_options
@source_options
@keep_option
@click.option("--auto", is_flag=True, help="Judge by verdict, reading only the pairs that are probed.")
@click.option("--rerun", is_flag=True, help="Judge by rerunning the candidate, right up to each probe.")
@trust_option
@click.option("--log", type=PATH, metavar="FILE", help="Write every mark to a new file as it is given.")
@click.option("--replay", type=PATH, metavar="FILE", help="Begin with the marks of a log.")
@json_option
def command(reference: Path, candidate: Path, **options: Any) -> int:
    """Search the outputs of two dumps for the first bad one, as git bisect searches commits.

    Use it where each answer is expensive or a person must judge; compare measures everything and needs no assumption.
    This one assumes that everything before the first bad place is good, and everything after it bad. With
    --auto it looks at the neighbours of its answer and at a few samples, and says where that does not hold.

    With --rerun each question is a run of the candidate in which everything before the layer is the reference's:
    if the model's output is right then, the fault lies before it. The candidate must be a source, or a dump that
    capture made. A dump that you did not capture here names a stranger's code: it is shown, and run only after a typed
    yes or with --trust-source. Give --python and --trust-remote-code again where needed: no dump can ask for them.

    \b
    g, good   this is right            u, undo  take the last mark back
    b, bad    this is wrong            l, log   show the marks so far
    s, skip   this cannot be judged    q, quit  stop; go on later with --replay

    Exit status: 0 nothing is bad, 1 something is, 2 inconclusive, 130 interrupted.
    """
    chosen = take(options, BisectOptions)
    return bisect(make_request(reference, candidate, **options), chosen)


def bisect(request: Request, options: BisectOptions) -> int:
    """Search and print; returns the exit status. Raises after printing if the result is unknown."""
    session = open_dumps(run_sources(request, reruns=options.rerun))
    refuse_checkpoints(session.reference, session.candidate)
    if not session.pairs:
        raise inconclusive_error(session, session.outcome(()))
    rerun = _rerun_oracle(session, options) if options.rerun else None
    oracle = rerun.verdicts() if rerun else VerdictOracle.over(session.comparer, session.pairs)
    state = _begin(oracle, options, request.session)
    _introduce(session, state, options)
    if rerun is not None:
        state = _judge_by_reruns(state, rerun, options)
    elif options.auto:
        state = _judge_by_verdict(session, state, oracle, options)
    else:
        state = _ask_person(state, oracle, options)
    check = check_neighbours(state, oracle) if options.auto and not rerun else None
    outcome = BisectOutcome(state, oracle, check, session.doubts, rerun.doubt_about(state) if rerun else "")
    _report(session, outcome, options)
    if outcome.verdict == "unknown":
        raise inconclusive_search(outcome, options.log)
    return outcome.exit_status


def _rerun_oracle(session: Session, options: BisectOptions) -> RerunOracle:
    """The oracle that judges by reruns, after the user has agreed to what it runs."""
    oracle = with_consent(
        lambda trust: RerunOracle.over(session, follow_quietly, trust), trust_source=options.trust_source
    )
    tell_offer(oracle.offer, trust_source=options.trust_source)
    return oracle


def _begin(oracle: VerdictOracle, options: BisectOptions, session: Path | None) -> Bisect:
    """The initial state, or the state that a log or a session file left."""
    state = oracle.start()
    if options.replay is not None:
        state = _replay(state, options.replay)
    elif session is not None:
        state = _replay_log(state, read_state(session).bisect, session)
    if not (state.is_done or options.is_automatic or has_person()):
        raise TensordiffError("bisect asks a person, and there is no terminal to ask on; judge by verdict with --auto")
    if options.log is not None:
        if options.log.exists() and not (options.replay and options.log.samefile(options.replay)):
            go_on = f"go on from it with --replay {printable(options.log)}"
            raise WriteError(f"{printable(options.log)}: is there already; give --log another name, or {go_on}")
        _write(options.log, state)
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


def _introduce(session: Session, state: Bisect, options: BisectOptions) -> None:
    """Print what is searched, and under which assumption."""
    if options.as_json and options.is_automatic:
        return
    lines = [
        f"{counted(len(state.points), 'place')}, {counted(len(state.suspects), 'suspect')}, "
        f"roughly {counted(state.steps, 'step')}",
        f"assuming that {ASSUMPTION}",
    ]
    if session.alignment.order_from == "names":
        lines.append("in the order of their names: neither dump says in which order its layers ran")
    tell = echo if options.is_automatic else say
    for line in lines:
        tell(line)


def _judge_by_verdict(session: Session, state: Bisect, oracle: VerdictOracle, options: BisectOptions) -> Bisect:
    """Judge by verdict, printing a line for each pair that is read."""
    table = None if options.as_json else Table(session, Page.here())
    if table:
        table.headings()
    shown = 0
    for reached in _logged(search_and_check(state, oracle), options):
        state, shown = reached, _show_new(table, oracle, shown)
    check_neighbours(state, oracle)
    _show_new(table, oracle, shown)
    return state


def _judge_by_reruns(state: Bisect, oracle: RerunOracle, options: BisectOptions) -> Bisect:
    """Judge by reruns, printing a line for each. One process makes all reruns and loads the candidate once."""
    with ReusableChild() as child:
        for reached in _logged(search(state, replace(oracle, child=child)), options):
            state = reached
            mark, position = state.marks[-1]
            if not options.as_json:
                left = counted(len(state.suspects), "suspect")
                echo(f"{mark:4}  {printable(state.points[position].name)}  ({left} left)")
    if not options.as_json and (sentence := oracle.explanation(state)):
        echo(sentence)
    return state


def _show_new(table: Table | None, oracle: VerdictOracle, shown: int) -> int:
    """Print the rows that were measured since; returns the number of all rows."""
    if table:
        for row in islice(oracle.rows.values(), shown, None):
            table.row(row)
    return len(oracle.rows)


def _ask_person(state: Bisect, oracle: VerdictOracle, options: BisectOptions) -> Bisect:
    """Ask a person. If they stop early, their marks are printed, so that they can continue later."""
    try:
        for reached in _logged(search(state, Person(oracle)), options):
            state = reached
    finally:
        if not state.is_done and options.log is None and state.marks:
            say(f"\n{state.log()}")
    return state


def _logged(states: Iterator[Bisect], options: BisectOptions) -> Iterator[Bisect]:
    """Write each state to the log as it comes."""
    for state in states:
        if options.log is not None:
            _write(options.log, state)
        yield state


def _write(path: Path, state: Bisect) -> None:
    write_file(path, state.log())


def _report(session: Session, outcome: BisectOutcome, options: BisectOptions) -> None:
    if options.as_json:
        echo(dumps(bisect_json(outcome)))
    else:
        print_outcome(Page.here(), session, outcome)


# --- a person as the oracle ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Person:
    """The person at the terminal, as an oracle."""

    oracle: VerdictOracle
    """Measures the layer that is shown."""

    def ask(self, bisect: Bisect) -> Answer | None:
        """Show the probe, and ask until it is judged."""
        if bisect.probe is None:
            return None
        _show(self.oracle.row(bisect.probe), bisect)
        while (word := _word(ask(_PROMPT))) != "quit":
            if word == "log":
                say(bisect.log().rstrip())
            elif word == "undo" and not bisect.marks:
                say("there is no mark to take back")
            elif word in ANSWERS:
                return ANSWERS[word]
            else:
                say(f"answer with one of {', '.join(_WORDS)}, or its first letter")
        return None


def _word(answer: str | None) -> str:
    """The command that an answer means; the end of the input means quit."""
    if answer is None:
        return "quit"
    answer = answer.lower()
    return next((word for word in _WORDS if answer in (word, word[0])), "")


def _show(row: Row, bisect: Bisect) -> None:
    wide = shutil.get_terminal_size().columns
    say("")
    for line in wrap(label(row.pair), wide, f"probe {row.pair.index}  ", "  "):
        say(click.style(line, bold=True))
    for text in _numbers(row):
        say(f"  {text}")
    glyph, colour = GLYPHS[row.verdict.name], COLOURS[row.verdict.name]
    for line in wrap(f"{row.verdict.name}: {printable(row.verdict.why)}", wide, f"  {glyph} ", "    "):
        say(click.style(line, fg=colour))
    say(f"{counted(len(bisect.suspects), 'suspect')}, roughly {counted(bisect.steps, 'step')} left")


def _numbers(row: Row) -> Iterator[str]:
    if row.diff is None:
        return
    yield f"shape {list(row.shape or ())}, {' against '.join(dict.fromkeys(row.dtypes or ()))}"
    yield f"max|Δ| {number(row.diff.max_abs)}  rel_l2 {number(row.diff.rel_l2)}"
    yield sparkline(row.diff.profile, _BARS)


# --- the result ---------------------------------------------------------------------------------------


def print_outcome(page: Page, session: Session, outcome: BisectOutcome) -> None:
    """Print the first bad layer, or the remaining suspects, and whether the assumption held."""
    echo()
    if outcome.first_bad is not None:
        _print_first_bad(page, outcome, outcome.first_bad)
    elif outcome.bisect.is_done and outcome.bisect.any_bad and not outcome.unproven:
        page.print(f"skips leave several suspects: {_names(outcome, outcome.bisect.suspects)}", fg="red", bold=True)
    elif outcome.bisect.all_good:
        echo("nothing is bad")
    if outcome.check is not None:
        _print_check(page, session, outcome, outcome.check)
    weights = taken_weights(session.reference) if outcome.verdict == "agrees" else None
    page.print(f"verdict: {outcome.verdict}{f', as its {printable(weights)} explain' if weights else ''}")


def _print_first_bad(page: Page, outcome: BisectOutcome, row: Row) -> None:
    page.print(f"first bad: {label(row.pair)}", fg="red", bold=True)
    page.print(printable(outcome.why_bad), "  ")
    page.print(printable(row.pair.reference.name), "  reference  ", " " * 13)
    page.print(printable(row.pair.candidate.name), "  candidate  ", " " * 13)


def _print_check(page: Page, session: Session, outcome: BisectOutcome, check: NeighbourCheck) -> None:
    if check.is_monotone and check.checked:
        more = f"{len(check.checked)} more places that were looked at"
        page.print(f"{'all pairs, compared in order,' if check.is_scanned else more} confirm this")
    if check.is_monotone is False:
        told = "; ".join(_contradictions(outcome, check))
        scan = shell_line(["tensordiff", "compare"], [session.reference.path, session.candidate.path])
        page.print(f"not monotone ({told}), so a scan may answer otherwise: {scan}", "! ", fg="yellow")


def _contradictions(outcome: BisectOutcome, check: NeighbourCheck) -> Iterator[str]:
    if check.earlier is not None:
        yield f"bad before it: {_names(outcome, [check.earlier])}"
    if check.good_again:
        yield f"good after a bad one: {_names(outcome, check.good_again)}"


def _names(outcome: BisectOutcome, positions: Sequence[int]) -> str:
    shown = ", ".join(label(outcome.oracle.pairs[at]) for at in positions[:_SHOWN])
    return f"{shown} and {len(positions) - _SHOWN} more" if len(positions) > _SHOWN else shown


def inconclusive_search(outcome: BisectOutcome, log: Path | None) -> TensordiffError:
    """The error for a search without an answer: why, and what to try."""
    bisect = outcome.bisect
    if not bisect.is_done:
        left = f"stopped with {counted(len(bisect.suspects), 'suspect')} left"
        kept = "save the marks shown above" if log is None else f"the marks are in {printable(log)}"
        return TensordiffError(f"{left}; {kept}, and go on with --replay" if bisect.marks else left)
    if bisect.all_good:
        return TensordiffError(f"nothing is bad, but {outcome.reasons[0]}")
    first = bisect.suspects[0]
    if outcome.unproven:
        return TensordiffError(
            f"{label(outcome.oracle.pairs[first])} is the first that is far off, but {outcome.unproven}"
        )
    why = f"{label(outcome.oracle.pairs[first])}: {outcome.oracle.row(first).verdict.why}"
    return TensordiffError(f"{len(bisect.suspects)} places were skipped and none is known to be bad, first {why}")
