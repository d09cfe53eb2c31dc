"""A comparison of models while they run: tensors are measured as they arrive, then released.

A first pass lists the entries of each source, so that the two sides are aligned before any value exists. Then both run,
and each entry is read when it arrives (``StreamedSide``). Measuring and judging are those of any comparison. What
diverges, with the inputs of its layer, is kept on disk as a dump.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tensordiff.align.index import parts_of
from tensordiff.align.learn import Learned, leaves_something
from tensordiff.align.match import Pair
from tensordiff.align.rules.rule import Side
from tensordiff.compare.comparer import bytes_behind
from tensordiff.compare.hint import Hint
from tensordiff.compare.judge.upstream_error import LATEST
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.row import Row
from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import CallKey
from tensordiff.errors import CaptureError, WriteError, printable
from tensordiff.search.outcome import Outcome
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.request import Request
from tensordiff.session.run_facts import run_dtypes
from tensordiff.session.session import Session, rules_of_request
from tensordiff.session.source_checks import check_sources
from tensordiff.session.sources import Sources
from tensordiff.session.storage.state import SessionState
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.session.streaming.side import FollowRun, OnRunStarted, StreamedSide
from tensordiff.session.third_dumps import ThirdDumps
from tensordiff.util.sizes import format_bytes

_BATCH_SHARE = 4  # a batch may take 1/4 of a side's window


@dataclass
class _ClosedResult:
    """What was found out about the result while the values were available."""

    has_logits: bool = False
    logits: LogitsDiff | None = None
    culprit: Row | None = None
    hint: Hint | None = None


@dataclass(frozen=True, kw_only=True)
class StreamedSession(Session):
    """A comparison whose pairs can be measured once, while the sources run."""

    options: StreamOptions = field(default_factory=StreamOptions)
    streamed: tuple[StreamedSide, ...] = ()
    """The sides that are sources."""
    learned_from: tuple[int, ...] = ()
    """How many tensors of each side were used for learning, if not all."""
    judged: list[Row] = field(default_factory=list)
    """The rows judged so far."""
    _result: _ClosedResult = field(default_factory=lambda: _ClosedResult())

    def rows(self) -> Iterator[Row]:
        """Measure the pairs in order, as their tensors arrive."""
        rows = self.judged
        rows.clear()
        for side in self.streamed:
            side.expect(part for pair in self.pairs for part in parts_of(_of_side(pair, side.side)))
        rereadable = RereadablePairs(self.pairs)
        comparer = replace(self.comparer, batch_bytes=self._batch_bytes())
        for row in Session.rows(replace(self, comparer=comparer)):
            is_wrong = row.verdict.name == "diverges"
            rows.append(row)  # first: who sees the kept file may interrupt, and is told of this row
            for side in self.streamed:
                side.note_judged(_of_side(row.pair, side.side), is_wrong=is_wrong)
            for pair in rereadable.released_by(row):
                for side in self.streamed:
                    side.release(_of_side(pair, side.side))
            yield row
            if self.options.stops and is_wrong and not row.is_input and Outcome(tuple(rows)).culprit is not None:
                for side in self.streamed:
                    side.stop()
                return
        for side in self.streamed:
            side.finish()

    def _batch_bytes(self) -> int:
        """How much of a side a batch may hold so that the next tensor still fits into the window."""
        rooms = []
        for side in self.streamed:
            largest = max((bytes_behind(_of_side(pair, side.side)) for pair in self.pairs), default=0)
            rooms.append(min(side.window_bytes // _BATCH_SHARE, side.window_bytes - largest))
        return max(0, min(rooms, default=0))

    def header_findings(self) -> Iterator[Finding]:
        """The findings of any session, and that rules were learned from only a part of the runs."""
        yield from super().header_findings()
        if self.learned_from:
            seen, all_of = sum(self.learned_from), len(self.reference) + len(self.candidate)
            yield Finding(
                "note", "", f"how names differ was learned from {seen:,} of {all_of:,} tensors",
                f"no more than {format_bytes(self.options.window_bytes)} are held at a time with --stream",
                "give a larger --window where pairs are missing, or rules that tensordiff align -o wrote",
            )  # fmt: skip

    def look_at_result(self, outcome: Outcome) -> None:
        """Store what a look at the result needs after the stream is closed: the culprit, its hint, and the logits."""
        self._result.logits = self.logits(outcome.rows)
        self._result.has_logits = True
        if outcome.culprit is not None:
            self.keep_culprit(outcome.culprit)
            self._result.hint = super().hint(outcome.culprit)
            self._result.culprit = outcome.culprit

    def logits(self, rows: Iterable[Row]) -> LogitsDiff | None:
        """How far apart the logits are; taken from storage after the stream was closed."""
        return self._result.logits if self._result.has_logits else super().logits(rows)

    def hint(self, row: Row) -> Hint | None:
        """The kind of error a row shows; the culprit's is taken from storage after the stream was closed."""
        culprit = self._result.culprit
        return self._result.hint if culprit is not None and culprit.pair is row.pair else super().hint(row)

    def kept_dumps(self) -> Iterator[Path]:
        """The folders of kept tensors, each a dump."""
        folder = self.options.folder
        if folder is not None and self.options.keep != "none":
            yield from (folder / side.side for side in self.streamed if side.kept)

    @property
    def lasting_reference(self) -> Path | None:
        """The reference's dump, or what was kept of it."""
        for side in self.streamed:
            if side.side == "reference":
                return next((path for path in self.kept_dumps() if path.name == side.side), None)
        return super().lasting_reference

    def keep_culprit(self, culprit: Row) -> None:
        """Keep both sides of a culprit and the inputs of its layer, which a run with injection needs."""
        if self.options.keep != "none":
            for side in self.streamed:
                for part in parts_of(_of_side(culprit.pair, side.side)):
                    side.keep_or_fetch(part)


def _of_side(pair: Pair, side: Side) -> Entry:
    return pair.reference if side == "reference" else pair.candidate


class RereadablePairs:
    """Tracks which pairs the judge may still read again, as rows are judged in order.

    For a pair that does not agree, the judge reads the inputs of its module again, and the outputs just before it. So
    the inputs of a call stay within reach until its last output is judged, and of all outputs the latest ones.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._outputs = Counter(pair.reference.call_key for pair in pairs if not pair.reference.is_input)
        """How many outputs of each call are still to be judged."""
        self._inputs: defaultdict[CallKey, list[Pair]] = defaultdict(list)
        self._latest: deque[Pair] = deque()

    def released_by(self, row: Row) -> Iterator[Pair]:
        """The pairs that will not be read again after a row was judged."""
        call = row.pair.reference.call_key
        if row.is_input:
            if self._outputs[call]:
                self._inputs[call].append(row.pair)
            else:
                yield row.pair
            return
        self._outputs[call] -= 1
        if not self._outputs[call]:
            yield from self._inputs.pop(call, ())
        if row.diff is None or row.is_gradient:  # the judge never reads these again
            yield row.pair
            return
        self._latest.append(row.pair)
        if len(self._latest) > LATEST:
            yield self._latest.popleft()


@contextmanager
def open_stream(
    request: Request,
    options: StreamOptions,
    follow: FollowRun,
    state: SessionState | None = None,
    started: OnRunStarted = lambda _: None,
) -> Iterator[StreamedSession]:
    """Open a comparison of sources, or of a dump and a source, that runs while it is iterated. Kept tensors remain."""
    with ExitStack() as stack:
        sides = _listed_sides(request, options, follow, started, stack)
        dumps = {side.side: side.dump for side in sides}
        reference = dumps.get("reference") or open_dump(request.reference)
        candidate = dumps.get("candidate") or open_dump(request.candidate)
        run_dtypes(reference, candidate)  # may fetch the model's last outputs, which is possible only before it runs
        learned, learned_from = _learn(request, state, reference, candidate, sides)
        third_dumps = ThirdDumps.open(request)
        session = StreamedSession.of_dumps(request, reference, candidate, third_dumps, state, learned)
        session = replace(session, options=options, streamed=sides, learned_from=learned_from)
        try:
            yield session
        except BaseException as error:
            for side in sides:
                with suppress(WriteError):  # report the first error
                    side.write_kept(printable(str(error) or "interrupted"))
            raise
        for side in sides:
            side.write_kept()


def _listed_sides(
    request: Request, options: StreamOptions, follow: FollowRun, started: OnRunStarted, stack: ExitStack
) -> tuple[StreamedSide, ...]:
    """Run each source once to list its entries."""
    sources = Sources.of(request)
    check_sources(sources)
    count = sum(source is not None for source in (sources.reference, sources.candidate))
    if not count:
        raise CaptureError("--stream is for sources that are run, and both sides are dumps; leave it out")
    if request.cluster is not None:
        raise CaptureError(
            "--cluster: workers read dumps, and streamed tensors are measured here; leave one of them out"
        )
    for settings in filter(None, (request.settings, request.candidate_settings)):
        if settings.weights:
            raise CaptureError("--weights: parameters are not streamed; compare them with tensordiff weights")
    if options.folder is not None and options.keep != "none":
        _refuse_used(options.folder)
    sides: list[StreamedSide] = []
    while (name := sources.side) is not None:
        side = StreamedSide(name, sources.job(Path("stream")), options, options.window_bytes // count, started)
        stack.callback(side.close)
        sides.append(side)
        sources = sources.with_dump(side.list_entries(follow))
    return tuple(sides)


def _refuse_used(folder: Path) -> None:
    for side in ("reference", "candidate"):
        if (folder / side).exists():
            raise WriteError(f"{printable(folder / side)}: is there already; choose another folder with --keep")


def _learn(
    request: Request, state: SessionState | None, reference: Dump, candidate: Dump, sides: Sequence[StreamedSide]
) -> tuple[Learned, tuple[int, ...]]:
    """Learn rules for entries that names leave unpaired, from as much of the beginning of both runs as the window
    holds."""
    rules = rules_of_request(request, state)
    if not request.learn or reference.statistics:
        return Learned(), ()
    if not leaves_something(PairedDumps.align(reference, candidate, rules).alignment):
        return Learned(), ()
    for side in sides:
        side.start()
    begun = {side.side: side.fill() for side in sides}
    ours, theirs = begun.get("reference", reference), begun.get("candidate", candidate)
    learned = PairedDumps.align(ours, theirs, rules, learns=True).learned
    is_all = len(ours) == len(reference) and len(theirs) == len(candidate)
    return learned, () if is_all else (len(ours), len(theirs))
