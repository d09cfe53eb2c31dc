"""What earlier rows say about a pair: the error that came into its layer, and how its parts did.

The incoming error is that of the layer's inputs if they were dumped. If they were not, any earlier output may have been
an input, and the worst of them counts. Integer and boolean inputs are either equal or not: a layer that got only such
inputs is right so far if they are equal, and if not, nothing can be said about it. The parts of a module run before it
ends, so their rows are known when the module is judged; they tell whether the fault lies between the parts.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict, deque
from functools import lru_cache, reduce

from tensordiff.align.match import Pair
from tensordiff.compare.judge.pairing import Pairing
from tensordiff.compare.judge.parents import parent_of
from tensordiff.compare.judge.verdict import GoldenErrors, floor_for
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row
from tensordiff.dump.model import CallKey
from tensordiff.errors import printable
from tensordiff.util.slices import release

LATEST = 24  # latest outputs that are kept, for routes and to name what ran before
_SHOWN = 3  # parts that a sentence names


class UpstreamError:
    """The judged rows, as far as they matter for those that follow."""

    def __init__(self, pairing: Pairing | None = None) -> None:
        self.pairing = pairing or Pairing()
        self.input_errors: dict[CallKey, float] = {}
        self.equal_integers: dict[CallKey, bool] = {}
        """Calls with integer or boolean inputs: whether all of these are equal."""
        self.same_routes: dict[tuple[str, int], bool] = {}
        """Mixtures of experts, by step: whether all tokens are known to take the same experts."""
        self.state_errors: dict[tuple[str, int], float] = {}
        """Modules, by step: the error of states that their parts kept from earlier steps, which no input of the module
        shows."""
        self.input_rows: dict[CallKey, list[Row]] = {}
        self.golden_input_ratios: dict[CallKey, float] = {}
        self.parts: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
        self.around_wrong: set[tuple[str, int]] = set()
        """Modules, by step, that hold a layer whose output is wrong, at any depth; compared themselves or not."""
        self.open_modules: dict[str, float] = {}
        self.worst: float | None = None
        self.golden_worst: float | None = None
        self.worst_agreeing: float | None = None
        self.latest_outputs: deque[Row] = deque(maxlen=LATEST)
        self.is_equal_so_far = True
        """Whether all pairs so far were equal bit for bit."""

    def release(self) -> None:
        """Forget all pairs, in slices."""
        release(self.input_errors, self.equal_integers, self.input_rows, self.golden_input_ratios)
        release(self.parts, self.open_modules)

    def carried_into(self, pair: Pair) -> float | None:
        """The error that came into a pair's layer; an input's own may come from anything before it. None if unknown."""
        if not (self.equal_integers or self.input_errors or self.state_errors) or pair.reference.is_input:
            return self.worst
        call = self._call_of(pair)
        if not self.equal_integers.get(call, True):
            return math.inf
        if call not in self.input_errors and self._is_wrong_inside(pair):
            return 0.0
        carried = self.input_errors.get(call, self.worst)
        state = self.state_errors.get((pair.reference.layer, pair.reference.step))
        return carried if state is None else worse(carried or 0.0, state)

    def _call_of(self, pair: Pair) -> CallKey:
        """The call whose inputs are those of a pair."""
        call = pair.reference.call_key
        is_known = call in self.input_errors or call in self.equal_integers
        return call if is_known else self.pairing.calls_of_fused.get(call, call)

    def _is_wrong_inside(self, pair: Pair) -> bool:
        """Whether a module got only equal integers although a part of it got a wrong input.

        Only then is the module to blame; otherwise its error is the sum of its parts' errors.
        """
        is_given = pair.reference.call_key in self.equal_integers
        return is_given and any(part.is_input and part.verdict.name == "diverges" for part in self.parts_of(pair))

    def is_given_equal(self, pair: Pair) -> bool:
        """Whether the inputs of a pair's layer are equal bit for bit: all of them or, if none are known, everything
        before."""
        if self.is_equal_so_far:
            return True
        given = self.inputs_of(pair) if self.input_rows and not pair.reference.is_input else []
        if not given or not self.has_equal_integers(pair):
            return False
        return all(row.diff is not None and _is_equal(row.diff) for row in given)

    def golden_ratio_into(self, pair: Pair) -> float | None:
        """The incoming error as a ratio of errors against a golden run."""
        if pair.reference.is_input:
            return self.golden_worst
        return self.golden_input_ratios.get(self._call_of(pair), self.golden_worst)

    def has_equal_integers(self, pair: Pair) -> bool:
        """Whether no integer or boolean input of a pair's layer differs."""
        return self.equal_integers.get(self._call_of(pair), True)

    def has_inputs(self, pair: Pair) -> bool:
        """Whether the inputs of a pair's layer were dumped."""
        call = self._call_of(pair)
        return call in self.input_errors or call in self.equal_integers

    def inputs_of(self, pair: Pair) -> list[Row]:
        """The rows of the dumped inputs of a pair's layer."""
        return self.input_rows.get(self._call_of(pair), [])

    def record(self, row: Row, golden: GoldenErrors | None = None, error: float | None = None) -> None:
        """Remember a row for those that follow; ``error`` replaces its rel_l2 if that would mislead."""
        diff, entry = row.diff, row.pair.reference
        if diff is None:
            return
        is_input, agrees = entry.is_input, row.verdict.name == "agrees"
        is_given = is_input and row.pair.index not in self.pairing.own_results
        self.is_equal_so_far = self.is_equal_so_far and _is_equal(diff)
        parent = parent_of(entry.layer)
        if not (is_input and agrees):
            self.parts[parent, entry.step].append(row)
        if not is_input:
            self.latest_outputs.append(row)
            if row.verdict.name == "diverges":
                self._record_around(parent, entry.step)
        if row.is_exact:
            if row.shape is not None and len(row.shape) >= 2:
                key = mixture_of(entry.layer), entry.step
                self.same_routes[key] = self.same_routes.get(key, True) and diff.max_abs == 0
            if is_given:
                call = entry.call_key
                self.equal_integers[call] = self.equal_integers.get(call, True) and row.verdict.name != "diverges"
            return
        if is_given:
            call = entry.call_key
            own = diff.rel_l2 if error is None else error
            self.input_errors[call] = worse(self.input_errors.get(call, 0.0), own)
            self.input_rows.setdefault(call, []).append(row)
            if _STATE.search(entry.port):
                self._record_state(parent, entry.step, own)
        elif not is_input:
            self._record_output(entry.layer, parent, diff.rel_l2 if error is None else error)
            if agrees:
                self.worst_agreeing = max(self.worst_agreeing or 0.0, diff.rel_l2 if error is None else error)
        if golden is not None and row.ignored_golden is None and (is_given or not is_input):
            self._record_golden(row, golden)

    def _record_around(self, module: str, step: int) -> None:
        """Record the modules around a layer that is wrong."""
        while module and (module, step) not in self.around_wrong:
            self.around_wrong.add((module, step))
            module = parent_of(module)

    def _record_state(self, module: str, step: int, error: float) -> None:
        """Record the error of a state kept from earlier steps, for a part's module and all modules around it."""
        while module:
            self.state_errors[module, step] = worse(self.state_errors.get((module, step), 0.0), error)
            module = module.rpartition(".")[0]

    def _record_output(self, layer: str, parent: str, error: float) -> None:
        """Keep the worst error that may still propagate. A module that has ended passes on only its output."""
        ended = self.open_modules.pop(layer, None)
        self.open_modules[parent] = worse(self.open_modules.get(parent, 0.0), error)
        if ended is None or (self.worst is not None and ended < self.worst):
            self.worst = worse(self.worst or 0.0, error)
        else:
            self.worst = reduce(worse, self.open_modules.values())

    def _record_golden(self, row: Row, golden: GoldenErrors) -> None:
        ratio = golden.guarded(row.dtypes) if row.dtypes else None
        if ratio is None:
            return
        if row.is_input:
            call = row.pair.reference.call_key
            self.golden_input_ratios[call] = worse(self.golden_input_ratios.get(call, 0.0), ratio)
        else:
            self.golden_worst = worse(self.golden_worst or 0.0, ratio)

    def parts_of(self, pair: Pair) -> list[Row]:
        """The rows of a module's parts, without inputs that agree."""
        return self.parts.get((pair.reference.layer, pair.reference.step), [])

    def beside(self, pair: Pair, step: int) -> list[Row]:
        """The rows of a layer's sibling modules in another step, without inputs that agree."""
        return self.parts.get((parent_of(pair.reference.layer), step), [])

    def cancellation_error(self, row: Row) -> float | None:
        """The relative error of a sum that the errors of its terms explain if large terms cancel.

        A residual stream may shrink a hundredfold when a block adds to it; its relative error then grows as much,
        although no layer is wrong. None if no parts are known.
        """
        if row.diff is None or row.dtypes is None or row.diff.ref_rms == 0:
            return None
        most = 2 * max(self.carried_into(row.pair) or 0.0, floor_for(*row.dtypes)[1].agrees / 3)
        parts = [part for part in self.parts_of(row.pair) if not part.is_input]
        terms = (term for term in (*parts, *self.inputs_of(row.pair)) if term.shape == row.shape)
        errors = (term.diff.rms for term in terms if term.diff and term.diff.rel_l2 <= most)
        return max(errors, default=0.0) / row.diff.ref_rms if parts else None


_EXPERTS = re.compile(r"(?:^|\.)experts(?=\.|$)")
_STATE = re.compile(r"(?:^|_)(?:past|cache)(?:_|$)|(?:conv|recurrent|ssm)_states?(?:_|$)")
"""Inputs that are kept from step to step."""


@lru_cache(maxsize=1 << 16)
def mixture_of(layer: str) -> str:
    """The module that holds a router and experts, from the name of one of them or of a part of the experts."""
    found = _EXPERTS.search(layer)
    return layer[: found.start()] if found else parent_of(layer)


def _is_equal(diff: Diff) -> bool:
    return diff.max_abs == 0 and not diff.apart


def worse(one: float, other: float) -> float:
    """The larger error; NaN is larger than any number."""
    return one if one > other or one != one else other


# --- where in a module the fault lies ----------------------------------------------------------


def between_parts(row: Row, upstream: UpstreamError, *, knows_inputs: bool = False) -> str:
    """What to add to the reason of a row that diverges about where the fault lies; empty if nothing is known."""
    parts = [part for part in upstream.parts_of(row.pair) if part.verdict.name != "unknown"]
    if any(not part.is_input for part in parts):
        return _of_parts(row, parts, upstream)
    if knows_inputs or upstream.has_inputs(row.pair) or not upstream.latest_outputs:
        return ""
    before = upstream.latest_outputs[-1].pair.reference.layer
    return f"{_UNSEEN_INPUTS}, so the fault may lie between {printable(before)} and it"


_UNSEEN_INPUTS = "; its inputs were not compared"


def located_reason(why: str, where: str) -> str:
    """A row's reason plus where the fault lies. If no input was compared, the reason refers to the rows before
    instead."""
    if where.startswith(_UNSEEN_INPUTS):
        why = why.replace("the error of its input", "the error of the rows before")
        why = why.replace("though its input agrees", "though the rows before agree")
    return f"{why}{where}"


def _of_parts(row: Row, parts: list[Row], upstream: UpstreamError) -> str:
    """If a part diverges, or an uncompared part holds a layer that does, it explains its module; if none does, the
    fault lies between the parts.
    """
    if any(part.verdict.name == "diverges" and not part.is_input for part in parts):
        return ""
    first = _first_wrong_input(parts)
    where = f" (residual, scale, reshape){_first_seen(first, row)}"
    if left := _not_compared(row, parts, first, upstream.pairing):
        if any((layer, row.pair.reference.step) in upstream.around_wrong for layer in left):
            return ""
        was, it = ("was", "it") if len(left) == 1 else ("were", "them")
        shown = ", ".join(_short(layer, row) for layer in left[:_SHOWN])
        names = f"{shown}{f' and {len(left) - _SHOWN} more' if len(left) > _SHOWN else ''}"
        return (
            f"; those of its parts that were compared are right by themselves; {names} {was} not compared, so the fault"
            f" is in {it} or between the parts{where}"
        )
    return f"; its parts are right by themselves, so what it does between them is wrong{where}"


def _not_compared(row: Row, parts: list[Row], first: Row | None, pairing: Pairing) -> list[str]:
    """Parts of a module that ran before the first wrong input and have no row."""
    module, compared = row.pair.reference, {part.pair.reference.layer for part in parts if not part.is_input}
    inside = (entry.layer for entry in pairing.parts_left_before(module, first and first.pair.reference))
    own = first and first.pair.reference.layer
    return [layer for layer in dict.fromkeys(inside) if layer not in compared and layer != own]


def _first_seen(first: Row | None, row: Row) -> str:
    return f", first seen in what {_short(first.pair.reference.layer, row)} was given" if first else ""


def _first_wrong_input(parts: list[Row]) -> Row | None:
    """The first wrong input among the rows of a module's parts."""
    return next((part for part in parts if part.is_input and part.verdict.name == "diverges"), None)


def _short(layer: str, row: Row) -> str:
    return printable(layer.removeprefix(f"{row.pair.reference.layer}."))
