"""What is wrong with a comparison before any number is believed.

The commonest failures are captures that look like results: other tokens, another step, a buffer
overwritten, half a dump. Each finding says why it matters and what to do. What can be told from
headers, token ids and the embedding is said at the top of every compare; what values show is said at its end,
from what was measured (``lint_rows``); what needs every byte of a dump is ``dump.lint``'s, and only
``tensordiff lint`` asks for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np

from tensordiff.align.match import Alignment, Pair
from tensordiff.dump.dtypes import Array
from tensordiff.dump.finding import Finding
from tensordiff.dump.lint import lint_headers
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import AlignError, DumpError

__all__ = ["Finding", "lint_pair"]

# Tables that tokens are looked up in, by the last part of their names ...
_TABLES = frozenset((
    "embed_tokens", "word_embeddings", "wte", "embed_in", "tok_embeddings", "token_embedding", "embedding", "tok_embed",
))  # fmt: skip
# ... and names that a table has as well as a module that adds positions to it, or normalizes.
_PERHAPS_TABLES = frozenset(("embeddings", "shared", "embed"))
_ANY_TABLE = _TABLES | _PERHAPS_TABLES
_IDS = frozenset(("ids", "input_ids", "token_ids", "tokens", "input_tokens", "decoder_input_ids"))
_BARE_IDS = frozenset(("input_ids", "input_tokens", "decoder_input_ids"))
_OTHER_IDS = re.compile(r"position|type|wpe")


def lint_pair(reference: Dump, candidate: Dump, alignment: Alignment) -> Iterator[Finding]:
    """Findings about two dumps and how they pair; reads token ids and the embedding, nothing larger."""
    for side, dump in (("reference", reference), ("candidate", candidate)):
        for finding in lint_headers(dump):
            yield finding._replace(where=side if not finding.where else f"{side}: {finding.where}")
    yield from _coverage(alignment)
    yield from _token_ids(reference, candidate, alignment)
    yield from _phases(alignment)
    yield from _embedding(alignment)


def _coverage(alignment: Alignment) -> Iterator[Finding]:
    if not alignment.pairs:
        yield Finding(
            "error",
            "",
            "nothing could be paired",
            "there is nothing to compare",
            "write a rule that makes the names alike (--rules)",
        )
    elif alignment.coverage < 0.5:
        yield Finding(
            "warning", "", f"only {alignment.coverage:.0%} of the entries found a partner",
            "what is not paired is not compared", "look at the orphans and write a rule that makes their names alike",
        )  # fmt: skip


def _token_ids(reference: Dump, candidate: Dump, alignment: Alignment) -> Iterator[Finding]:
    """Both sides must have seen the same tokens, or every number after is about something else."""
    ids = reference.facts.get("token_ids"), candidate.facts.get("token_ids")
    if ids[0] is not None and ids[1] is not None and ids[0] != ids[1]:
        yield _tokens_differ("the manifests")
        return
    pair = next((pair for pair in alignment.pairs if _is_token_ids(pair) and not _equal(pair)), None)
    if pair is not None:
        yield _tokens_differ(pair.reference.name)


def _phases(alignment: Alignment) -> Iterator[Finding]:
    """A prefill step sees all tokens of the prompt, a decode step one: the two are never the same step."""
    for pair in alignment.pairs:
        if not _is_embedding(pair, alignment):
            continue
        counts = _tokens(pair.reference), _tokens(pair.candidate)
        if None not in counts and counts[0] != counts[1] and 1 in counts:
            prefill, decode = ("reference", "candidate") if counts[1] == 1 else ("candidate", "reference")
            yield Finding(
                "error", f"step {pair.reference.step}",
                f"the {prefill} saw {max(c for c in counts if c)} tokens, the {decode} one",
                "a prefill step is compared with a decode step", "give the step that was meant with --step, or dump it",
            )  # fmt: skip


def _tokens(entry: Entry) -> int | None:
    """How many tokens an embedding gave."""
    try:
        shape = entry.spec.shape
    except (DumpError, AlignError):
        return None
    return math.prod(shape[:-1]) if len(shape) > 1 else None


def _tokens_differ(where: str) -> Finding:
    return Finding(
        "error", where, "the two runs did not get the same token ids",
        "every number after this compares answers to different questions",
        "run both on the same ids, not on the same text",
    )  # fmt: skip


def _is_token_ids(pair: Pair) -> bool:
    entry = pair.reference
    try:
        return _is_named_as_ids(entry) and entry.spec.dtype.kind in "iu"
    except (DumpError, AlignError):
        return False


def _is_named_as_ids(entry: Entry) -> bool:
    """What the embedding was given, or what is called ids where a model or a loader gave them."""
    if not entry.is_input:
        return _last(entry.layer) in _BARE_IDS
    if entry.port.removeprefix("input_") in _IDS:
        return True
    return ("embed" in entry.layer or _last(entry.layer) in _ANY_TABLE) and not _OTHER_IDS.search(entry.name)


def _embedding(alignment: Alignment) -> Iterator[Finding]:
    """Looking up a table rounds nothing: if it differs, the alignment or the weights are wrong."""
    for pair in alignment.pairs:
        if _is_embedding(pair, alignment):
            if _same_type(pair) and not _equal(pair):
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
    """Whether something is nothing but a table: by its class, or because nothing lies in it, and ids go in."""
    if entry.origin is not None and entry.origin.module_class is not None:
        return entry.origin.module_class.endswith("Embedding")
    inside = f"{entry.layer}."
    others = [pair.reference for pair in alignment.pairs]
    takes_ids = any(other.layer == entry.layer and other.is_input and _is_whole(other) for other in others)
    return takes_ids and not any(other.layer.startswith(inside) for other in others)


def _is_whole(entry: Entry) -> bool:
    try:
        return entry.spec.dtype.kind in "iu"
    except (DumpError, AlignError):
        return False


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _same_type(pair: Pair) -> bool:
    try:
        return pair.reference.spec.dtype == pair.candidate.spec.dtype
    except (DumpError, AlignError):
        return False


def _equal(pair: Pair) -> bool:
    """Whether the values are equal; what cannot be read is for measuring to report."""
    try:
        ref, cand = pair.reference.read(), pair.candidate.read()
    except (DumpError, AlignError):
        return True
    if ref.size != cand.size:
        return False
    return _same_bits(ref, cand) or bool(np.array_equal(ref.reshape(-1), cand.reshape(-1)))


def _same_bits(ref: Array, cand: Array) -> bool:
    """Whether they are equal bit by bit, NaN included."""
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (ref, cand))
    return ref.dtype == cand.dtype and bool(np.array_equal(a, b))
