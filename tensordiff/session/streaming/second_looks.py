"""Which pairs the judge may read again after they were judged: only those must stay within reach while models run.

Of a pair that does not agree the judge looks again at what its module was given, and at the outputs that came just
before. So the inputs of a call stay until its last output is judged, and of all outputs the latest.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator

from tensordiff.align.match import Pair
from tensordiff.compare.judge.upstream_error import LATEST
from tensordiff.compare.row import Row
from tensordiff.dump.model import CallKey


class SecondLooks:
    """The pairs that may be read again, as rows are judged in order."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._outputs = Counter(pair.reference.call_key for pair in pairs if not pair.reference.is_input)
        """How many outputs of a call are still to be judged."""
        self._inputs: defaultdict[CallKey, list[Pair]] = defaultdict(list)
        self._latest: deque[Pair] = deque()

    def over(self, row: Row) -> Iterator[Pair]:
        """The pairs that are read no more once a row was judged."""
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
        if row.diff is None or row.is_gradient:  # the judge reads neither again
            yield row.pair
            return
        self._latest.append(row.pair)
        if len(self._latest) > LATEST:
            yield self._latest.popleft()
