"""Sanity checks of a comparison, to be read before any number is believed.

The most common mistakes are captures that look like results: other tokens, another step, an overwritten buffer, half a
dump. Each finding says why it matters and what to do.

- ``lint_pair`` uses headers, token ids and the embedding; its findings are shown before every comparison.
- ``lint_rows`` uses the measured numbers; its findings are shown after every comparison: NaN, overflow, zeros,
  identical blocks, broken chains. Measuring has already read every paired value, so only the few entries whose numbers
  are suspicious (two blocks with the same RMS) are read again.
- ``dump.lint`` reads every byte of a dump, including unpaired entries; only ``tensordiff lint`` runs it.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tensordiff.align.coverage import Coverage
from tensordiff.align.index import ComputedTensor
from tensordiff.align.match import Alignment, Pair
from tensordiff.compare.judge.verdict import FLOORS, TF32
from tensordiff.compare.lint_manifests import lint_manifests
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row, readable_spec
from tensordiff.dump.arithmetic import tf32_in
from tensordiff.dump.block_chain import is_computed_between
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import (
    SHOWN,
    Finding,
    block_part,
    broken_chain_findings,
    by_port,
    call_of_block_before,
    chunks,
    identical_findings,
    inf_findings,
    is_never_zero,
    lint_headers,
    nan_findings,
    overflows,
    zero_findings,
)
from tensordiff.dump.model import CallKey, Dump, Entry
from tensordiff.errors import AlignError, DumpError
from tensordiff.util.garbage_collector import gc_paused
from tensordiff.util.sizes import format_percent
from tensordiff.util.slices import release, sorted_positions

# Embedding tables, by the last part of their names.
_TABLES = frozenset((
    "embed_tokens", "word_embeddings", "wte", "embed_in", "tok_embeddings", "token_embedding", "embedding", "tok_embed",
))  # fmt: skip
# Names that tables share with modules that add positions or normalize.
_PERHAPS_TABLES = frozenset(("embeddings", "shared", "embed"))
_ANY_TABLE = _TABLES | _PERHAPS_TABLES
_MOST_FILES = 64
"""Number of files of two folders that are checked to see whether they are the same files."""
_IDS = frozenset(("ids", "input_ids", "token_ids", "tokens", "input_tokens", "decoder_input_ids"))
_BARE_IDS = frozenset(("input_ids", "input_tokens", "decoder_input_ids"))
_OTHER_IDS = re.compile(r"position|type|wpe")


def lint_pair(
    reference: Dump, candidate: Dump, alignment: Alignment, coverage: Coverage | None = None
) -> Iterator[Finding]:
    """Findings about two dumps and their pairing; reads token ids and the embedding, nothing larger.

    ``coverage`` is that of the selected pairs, if not all pairs are compared.
    """
    for side, dump in (("reference", reference), ("candidate", candidate)):
        for finding in lint_headers(dump):
            yield finding._replace(where=side if not finding.where else f"{side}: {finding.where}")
    yield from _same_dump(reference, candidate)
    yield from lint_manifests(reference, candidate)
    yield from _tf32(reference)
    yield from _coverage(alignment, coverage or alignment.coverage)
    if reference.statistics or candidate.statistics:
        return  # the following checks read values
    yield from _token_ids(reference, candidate, alignment)
    yield from _phases(alignment)
    yield from _embedding(alignment)


def _same_dump(reference: Dump, candidate: Dump) -> Iterator[Finding]:
    """The same dump on both sides, perhaps under two names: it agrees with itself whatever the model does."""
    with suppress(OSError):  # arrays in memory, or a dump in a store
        if _are_same_files(reference.path, candidate.path):
            yield Finding(
                "warning", "", "reference and candidate are the same file or folder",
                "it agrees with itself, whatever the model computes", "give the dump of the other run",
            )  # fmt: skip


def _are_same_files(one: Path, other: Path) -> bool:
    """Whether two paths are the same file or folder, or two folders of links to the same files."""
    if one.samefile(other):
        return True
    if not (one.is_dir() and other.is_dir()):
        return False
    names = [item.name for item in islice(one.iterdir(), _MOST_FILES) if item.is_file()]
    return bool(names) and all((other / name).is_file() and (one / name).samefile(other / name) for name in names)


def _tf32(reference: Dump) -> Iterator[Finding]:
    """A reference in TF32 has only that precision, so its floor is raised; the finding says that smaller errors are
    hidden."""
    if (where := tf32_in(reference)) != "nowhere":
        which = "" if where == "everywhere" else " of convolutions"
        yield Finding(
            "warning", "reference", f"rel_l2 up to {FLOORS[TF32].agrees:g}{which} counts as rounding: it ran in TF32",
            f"in full float32 the limit is {FLOORS['float32'].agrees:g}: smaller errors of the candidate are not seen",
            "capture the reference with --deterministic for the usual limit",
        )  # fmt: skip


def _coverage(alignment: Alignment, coverage: Coverage) -> Iterator[Finding]:
    if not alignment.pairs:
        yield Finding(
            "error",
            "",
            "nothing could be paired",
            "there is nothing to compare",
            "tensordiff align --auto pairs what the values prove; a rule makes names alike (--rules)",
        )
    elif coverage.reference.total and coverage.candidate.total and coverage.share < 0.5:
        yield Finding(
            "warning", "", f"only {format_percent(coverage.share)} of the outputs found a partner",
            "what is not paired is not compared",
            "tensordiff align --auto pairs what the values prove; a rule makes the orphans' names alike",
        )  # fmt: skip


def _token_ids(reference: Dump, candidate: Dump, alignment: Alignment) -> Iterator[Finding]:
    """Both sides must have got the same tokens, or all numbers compare answers to different questions."""
    ids = reference.facts.get("token_ids"), candidate.facts.get("token_ids")
    if ids[0] is not None and ids[1] is not None and ids[0] != ids[1]:
        yield _tokens_differ("the manifests")
        return
    pair = next((pair for pair in alignment.pairs if _is_token_ids(pair) and not _are_equal(pair)), None)
    if pair is not None:
        yield _tokens_differ(pair.reference.name)


def _phases(alignment: Alignment) -> Iterator[Finding]:
    """A prefill step sees all tokens of the prompt and a decode step sees one, so they are never the same step."""
    for pair in alignment.pairs:
        if not _is_embedding(pair, alignment):
            continue
        counts = _tokens(pair.reference), _tokens(pair.candidate)
        if None in counts or counts[0] == counts[1]:
            continue
        if 1 in counts:
            prefill, decode = ("reference", "candidate") if counts[1] == 1 else ("candidate", "reference")
            yield Finding(
                "error", f"step {pair.reference.step}",
                f"the {prefill} saw {max(c for c in counts if c)} tokens, the {decode} one",
                "a prefill step is compared with a decode step", "give the step that was meant with --step, or dump it",
            )  # fmt: skip
        else:
            yield Finding(
                "warning", pair.reference.name, f"the reference saw {counts[0]} tokens, the candidate {counts[1]}",
                "runs on different inputs cannot be compared",
                "run both on the same token ids: capture takes --prompt or --input-ids",
            )  # fmt: skip


def _tokens(entry: Entry) -> int | None:
    """The number of tokens that an embedding returned."""
    spec = readable_spec(entry)
    return math.prod(spec.shape[:-1]) if spec is not None and len(spec.shape) > 1 else None


def _tokens_differ(where: str) -> Finding:
    return Finding(
        "error", where, "the two runs did not get the same token ids",
        "every number after this compares runs on different inputs",
        "run both on the same ids, not on the same text",
    )  # fmt: skip


def _is_token_ids(pair: Pair) -> bool:
    return _is_named_as_ids(pair.reference) and _is_integer(pair.reference)


def _is_named_as_ids(entry: Entry) -> bool:
    """Whether an entry is the input of the embedding, or is named like token ids."""
    if not entry.is_input:
        return _last(entry.layer) in _BARE_IDS
    if entry.port.removeprefix("input_") in _IDS:
        return True
    return ("embed" in entry.layer or _last(entry.layer) in _ANY_TABLE) and not _OTHER_IDS.search(entry.name)


def _embedding(alignment: Alignment) -> Iterator[Finding]:
    """A table lookup rounds nothing, so if its output differs, the alignment or the weights are wrong."""
    for pair in alignment.pairs:
        if _is_embedding(pair, alignment):
            if _same_type(pair) and _tokens(pair.reference) == _tokens(pair.candidate) and not _are_equal(pair):
                yield Finding(
                    "warning", pair.reference.name, "the embedding's output is not bit-equal",
                    "a table look-up rounds nothing, so tokens, weights or scaling differ from the start",
                    "compare token ids and the embedding weights before reading any other number",
                )  # fmt: skip
            return


def _is_embedding(pair: Pair, alignment: Alignment) -> bool:
    entry, names = pair.reference, (_last(pair.name), _last(pair.reference.layer))
    if entry.is_input or _ANY_TABLE.isdisjoint(names):
        return False
    return not _TABLES.isdisjoint(names) or _is_table(entry, alignment)


def _is_table(entry: Entry, alignment: Alignment) -> bool:
    """Whether a layer is only a table: by its class, or because it has no parts and takes ids."""
    if entry.origin is not None and entry.origin.module_class is not None:
        return entry.origin.module_class.endswith("Embedding")
    inside = f"{entry.layer}."
    others = [pair.reference for pair in alignment.pairs]
    takes_ids = any(other.layer == entry.layer and other.is_input and _is_integer(other) for other in others)
    return takes_ids and not any(other.layer.startswith(inside) for other in others)


def _is_integer(entry: Entry) -> bool:
    spec = readable_spec(entry)
    return spec is not None and spec.dtype.kind in "iu"


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _same_type(pair: Pair) -> bool:
    specs = readable_spec(pair.reference), readable_spec(pair.candidate)
    return specs[0] is not None and specs[1] is not None and specs[0].dtype == specs[1].dtype


def _are_equal(pair: Pair) -> bool:
    """Whether the values are equal; a tensor that cannot be read is reported by measuring."""
    try:
        ref, cand = pair.reference.read(), pair.candidate.read()
    except (DumpError, AlignError):
        return True
    if ref.size != cand.size:
        return False
    return _same_bits(ref, cand) or bool(np.array_equal(ref.reshape(-1), cand.reshape(-1)))


def _same_bits(ref: Array, cand: Array) -> bool:
    """Whether both are equal bit by bit, including NaN."""
    return ref.dtype == cand.dtype and bool(np.array_equal(_bytes(ref), _bytes(cand)))


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# --- what the measured numbers show ---------------------------------------------------------------

_NEAR = 1e-6  # relative: equal values have an RMS within this, different values hardly ever
_APART = 1e-3  # relative: values whose RMS differs by more are certainly different


class _EntryNumbers(NamedTuple):
    """The measured numbers of one entry."""

    entry: Entry
    rms: float
    """RMS of the finite values; NaN if the numbers do not determine it."""
    nan: int
    inf: int


def lint_rows(rows: Iterable[Row]) -> Iterator[Finding]:
    """Findings about the values of both sides, from the rows of a comparison."""
    measured = [row for row in rows if row.diff is not None and row.diff.elements]
    with gc_paused():
        reference, candidate = (_findings_of_side(measured, side) for side in (0, 1))
    yield from _ignored_golden(measured)
    for finding in reference:
        yield _on_side("both sides" if finding in candidate else "reference", finding)
    for finding in candidate:
        if finding not in reference:
            yield _on_side("candidate", finding)


def _findings_of_side(rows: Sequence[Row], side: int) -> list[Finding]:
    numbers = _numbers_of(rows, side)
    found = list(_value_findings(numbers))
    release(numbers)
    return found


def _ignored_golden(rows: Sequence[Row]) -> Iterator[Finding]:
    """A golden run that is far from the reference says nothing about the candidate."""
    ignored = [row for row in rows if row.ignored_golden is not None and not row.is_exact and not _is_equal(row)]
    if ignored:
        first = ignored[0]
        yield Finding(
            "warning", "golden", f"was ignored for {len(ignored)} pairs, first {first.pair.name}",
            f"the reference is off by rel_l2 {first.ignored_golden:.1e} from it there, more than precision explains",
            "check that it is the same model, weights and prompt in higher precision",
        )  # fmt: skip


def _is_equal(row: Row) -> bool:
    """Whether both sides are equal, so that the golden run does not matter: masks made of the lowest float64 and
    float32 differ widely."""
    return row.diff is not None and row.diff.max_abs == 0 and not row.diff.apart


def _on_side(side: str, finding: Finding) -> Finding:
    return finding._replace(where=f"{side}: {finding.where}" if finding.where else side)


def _numbers_of(rows: Sequence[Row], side: int) -> list[_EntryNumbers]:
    """The numbers of every entry (or expression) of a side, each once."""
    numbers: dict[int, _EntryNumbers] = {}
    for row in rows:
        entry = row.pair.candidate if side else row.pair.reference
        if row.diff is not None:
            numbers[id(entry)] = _EntryNumbers(entry, _rms(row.diff, side), row.diff.nan[side], row.diff.inf[side])
    return list(numbers.values())


def _rms(diff: Diff, side: int) -> float:
    """The RMS of a side; the candidate's follows from rel_l2 and the best-fitting factor."""
    if not side or diff.ref_rms == 0:
        return diff.rms if side else diff.ref_rms
    squared = diff.rel_l2 * diff.rel_l2 + 2 * diff.scale - 1
    if squared > _APART:
        return diff.ref_rms * math.sqrt(squared)
    return 0.0 if diff.scale == 0 and diff.rel_l2 == 1 else math.nan


def _value_findings(numbers: list[_EntryNumbers]) -> Iterator[Finding]:
    yield from nan_findings([(one.entry.name, one.nan) for one in numbers if one.nan])
    yield from inf_findings([(name, count) for name, count in _overflows(numbers) if count])
    zeros = (one.entry for one in numbers if one.rms == 0 and not one.nan and not one.inf and is_never_zero(one.entry))
    yield from zero_findings(*by_port(entry for entry in zeros if _is_zero(entry)))
    # An expression is neither an input nor an output of a block.
    stored = [one for one in numbers if not isinstance(one.entry.stored, ComputedTensor)]
    yield from identical_findings(_identical(stored))
    yield from broken_chain_findings(_broken_chains(stored))


def _overflows(numbers: Sequence[_EntryNumbers]) -> Iterator[tuple[str, int]]:
    """The number of +inf in the first entries with infinities, which the numbers do not tell from a mask's -inf."""
    for one in islice((one for one in numbers if one.inf and "mask" not in one.entry.name.lower()), SHOWN):
        yield one.entry.name, sum(map(overflows, chunks(one.entry.read())))


def _is_zero(entry: Entry) -> bool:
    """Whether all values are zero, rather than just too small to be squared."""
    return not any(part.any() for part in chunks(entry.read()))


def _identical(numbers: Sequence[_EntryNumbers]) -> Iterator[list[str]]:
    """Entries of several blocks with the same bytes; only entries with the same RMS are read, and only a few."""
    alike = (
        run for group in _by_last_name(numbers) for near in _runs_of_equal_rms(group) for run in _by_block_part(near)
    )
    return islice((names for run in alike if len(names := _names_of_equal(run)) > 1), SHOWN + 1)


def _by_last_name(numbers: Iterable[_EntryNumbers]) -> Iterable[list[_EntryNumbers]]:
    """Outputs grouped by the last part of their names, which is faster than ``block_part``."""
    groups: dict[tuple[str, str], list[_EntryNumbers]] = defaultdict(list)
    for one in numbers:
        if 0 < one.rms < math.inf and not one.entry.is_input:
            last = one.entry.layer.rpartition(".")[2]
            groups["" if last.isdigit() else last, one.entry.port].append(one)
    return groups.values()


def _runs_of_equal_rms(group: list[_EntryNumbers]) -> Iterator[list[_EntryNumbers]]:
    """Groups of entries with nearly the same RMS, in execution order."""
    ranked = sorted_positions([one.rms for one in group])
    cuts = [at for at, (a, b) in enumerate(pairwise(ranked), 1) if group[b].rms > group[a].rms * (1 + _NEAR)]
    for begin, end in pairwise((0, *cuts, len(ranked))):
        if end - begin > 1:
            yield [group[k] for k in sorted(ranked[begin:end])]


def _by_block_part(near: Iterable[_EntryNumbers]) -> Iterator[list[Entry]]:
    """Entries that are the same part of several blocks."""
    groups: dict[tuple[object, ...], list[Entry]] = defaultdict(list)
    for one in near:
        if (place := block_part(one.entry)) is not None:
            groups[(*place, one.entry.spec.dtype, one.entry.spec.size)].append(one.entry)
    return (group for group in groups.values() if len(group) > 1)


def _names_of_equal(run: Sequence[Entry]) -> list[str]:
    """The first entry and all with the same bytes; none if it holds a single value everywhere."""
    first, *others = run
    flat = first.read().reshape(-1)
    if all((part == flat[0]).all() for part in chunks(flat)):
        return []
    return [first.name, *(other.name for other in others if _have_same_bytes(first, other))]


def _have_same_bytes(one: Entry, other: Entry) -> bool:
    parts = zip(chunks(one.read()), chunks(other.read()), strict=True)
    return all(np.array_equal(_bytes(a), _bytes(b)) for a, b in parts)


def _broken_chains(numbers: Sequence[_EntryNumbers]) -> Iterator[tuple[str, str]]:
    """Blocks none of whose inputs has the shape and RMS of the previous block's output."""
    got: dict[CallKey, list[_EntryNumbers]] = defaultdict(list)
    for one in numbers:
        if one.entry.is_input and (place := call_of_block_before(one.entry))[0]:
            got[place].append(one)
    layers = {layer for layer, _, _ in got}
    outputs = (one for one in numbers if one.entry.layer in layers and one.entry.port in ("output", "output_0"))
    for gave in outputs:
        given = [one for one in got[gave.entry.call_key] if one.entry.spec == gave.entry.spec]
        if given and all(_are_apart(one, gave) for one in given) and not _is_computed_between(numbers, gave, given[0]):
            yield given[0].entry.name, gave.entry.name


def _are_apart(one: _EntryNumbers, other: _EntryNumbers) -> bool:
    return abs(one.rms - other.rms) > _APART * max(one.rms, other.rms)


def _is_computed_between(numbers: Sequence[_EntryNumbers], gave: _EntryNumbers, given: _EntryNumbers) -> bool:
    """Whether the model computes a block's input between the blocks; this reads three entries."""
    inside, begin = f"{given.entry.layer}.", numbers.index(gave) + 1
    between = numbers[begin : max(begin, numbers.index(given))]
    modules = (one for one in between if not one.entry.is_input and not one.entry.layer.startswith(inside))
    if any(one.entry.spec == given.entry.spec and not _are_apart(one, given) for one in modules):
        return True
    taken = (one.entry for one in numbers if one.entry.is_input and one.entry.call_key == gave.entry.call_key)
    return is_computed_between(given.entry, gave.entry, (entry for entry in taken if entry.spec == gave.entry.spec))
