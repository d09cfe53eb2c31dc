"""What earlier rows say of what came into a pair's layer, and of how quiet the run has been.

The error that came in is that of the layer's inputs where they were dumped; where they were not, any output that
ran before may have come in, and the worst of them counts. A module's parts run before it ends, so when its own row
comes they are known: whether they are right tells whether the fault is between them.
"""

from __future__ import annotations

from collections import defaultdict, deque
from functools import lru_cache, reduce

from tensordiff.align.match import Pair
from tensordiff.compare.judge.verdict import GoldenErrors, floor_for
from tensordiff.compare.row import Row

Place = tuple[str, int, int]
_REMEMBERED = 24  # outputs kept for those that look for what stood before them


class UpstreamError:
    """All that was measured before a pair, as far as it matters for that pair."""

    def __init__(self) -> None:
        self.inputs: dict[Place, float] = {}
        self.given: dict[Place, list[Row]] = {}
        self.golden_inputs: dict[Place, float] = {}
        self.parts: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
        self.live: dict[str, float] = {}
        self.worst: float | None = None
        self.golden_worst: float | None = None
        self.usual: float | None = None
        self.latest: deque[Row] = deque(maxlen=_REMEMBERED)

    def into(self, pair: Pair) -> float | None:
        """What is known to have come into a pair's layer; an input may come from anything that ran before."""
        if pair.reference.is_input:
            return self.worst
        return self.inputs.get(place_of(pair), self.worst)

    def golden_into(self, pair: Pair) -> float | None:
        """The same in ratios of errors against a golden run."""
        if pair.reference.is_input:
            return self.golden_worst
        return self.golden_inputs.get(place_of(pair), self.golden_worst)

    def has_inputs(self, pair: Pair) -> bool:
        """Whether what came into a pair's layer was dumped."""
        return place_of(pair) in self.inputs

    def given_to(self, pair: Pair) -> list[Row]:
        """Rows of what came into a pair's layer, as far as it was dumped."""
        return self.given.get(place_of(pair), [])

    def note(self, row: Row, golden: GoldenErrors | None = None, error: float | None = None) -> None:
        """Remember a row for those that follow; with an error that is not the whole tensor's, where that misleads."""
        diff, entry = row.diff, row.pair.reference
        if diff is None:
            return
        is_input, agrees = entry.is_input, row.verdict.name == "agrees"
        parent = parent_of(entry.layer)
        if not (is_input and agrees):
            self.parts[parent, entry.step].append(row)
        if not is_input:
            self.latest.append(row)
        if row.is_exact:
            return
        if is_input:
            place = entry.layer, entry.step, entry.call
            self.inputs[place] = worse(self.inputs.get(place, 0.0), diff.rel_l2)
            self.given.setdefault(place, []).append(row)
        else:
            self._note_output(entry.layer, parent, diff.rel_l2 if error is None else error)
            if agrees:
                self.usual = max(self.usual or 0.0, diff.rel_l2)
        if golden is not None:
            self._note_golden(row, golden)

    def _note_output(self, layer: str, parent: str, error: float) -> None:
        """Keep the worst error that may still go on: what stood in a module that has ended went on in its output."""
        ended = self.live.pop(layer, None)
        self.live[parent] = worse(self.live.get(parent, 0.0), error)
        if ended is None or (self.worst is not None and ended < self.worst):
            self.worst = worse(self.worst or 0.0, error)
        else:
            self.worst = reduce(worse, self.live.values())

    def _note_golden(self, row: Row, golden: GoldenErrors) -> None:
        ratio = golden.guarded(row.dtypes) if row.dtypes else None
        if ratio is None:
            return
        if row.is_input:
            place = place_of(row.pair)
            self.golden_inputs[place] = worse(self.golden_inputs.get(place, 0.0), ratio)
        else:
            self.golden_worst = worse(self.golden_worst or 0.0, ratio)

    def parts_of(self, pair: Pair) -> list[Row]:
        """Rows of a module's parts, but for inputs that agree."""
        return self.parts.get((pair.reference.layer, pair.reference.step), [])

    def cancelled(self, row: Row) -> float | None:
        """The error of a sum, of which large terms have cancelled, that its terms' own errors explain.

        A stream that a block adds to may shrink a hundredfold, and its error then grows as much relative to it
        without anyone having done wrong. None where there are no parts, or the parts themselves are not as they came.
        """
        if row.diff is None or row.dtypes is None or row.diff.ref_rms == 0:
            return None
        most = 2 * max(self.into(row.pair) or 0.0, floor_for(*row.dtypes)[1].agrees / 3)
        parts = [part for part in self.parts_of(row.pair) if not part.is_input]
        terms = (term for term in (*parts, *self.given_to(row.pair)) if term.shape == row.shape)
        errors = (term.diff.rms for term in terms if term.diff and term.diff.rel_l2 <= most)
        return max(errors, default=0.0) / row.diff.ref_rms if parts else None


def place_of(pair: Pair) -> Place:
    """A layer's one run."""
    return pair.reference.layer, pair.reference.step, pair.reference.call


@lru_cache(maxsize=1 << 16)
def parent_of(layer: str) -> str:
    """The module that a layer is a part of; a numbered one is a part of what the list of them is."""
    parent, _, last = layer.rpartition(".")
    return parent.rpartition(".")[0] if last.isdigit() else parent


def worse(one: float, other: float) -> float:
    """The larger error; a NaN is larger than any."""
    return one if one > other or one != one else other
