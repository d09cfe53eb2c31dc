"""What is wrong with a comparison before any number is believed.

The commonest failures are captures that look like results: other tokens, another step, a buffer
overwritten, half a dump. Each finding says why it matters and what to do. What can be told from
headers and from the first rows is said at the top of every compare; what needs every byte is
``dump.lint``'s, and only ``tensordiff lint`` asks for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from tensordiff.align.match import Alignment, Pair
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import Finding, lint_headers
from tensordiff.dump.model import Dump, Entry
from tensordiff.errors import DumpError

__all__ = ["Finding", "lint_pair"]


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
    pair = next((p for p in alignment.pairs if _is_token_ids(p)), None)
    if pair is not None and not _equal(pair):
        yield _tokens_differ(pair.reference.name)


def _phases(alignment: Alignment) -> Iterator[Finding]:
    """A prefill step sees all tokens of the prompt, a decode step one: the two are never the same step."""
    for pair in alignment.pairs:
        if not _is_embedding(pair):
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
    except DumpError:
        return None
    return math.prod(shape[:-1]) if len(shape) > 1 else None


def _tokens_differ(where: str) -> Finding:
    return Finding(
        "error", where, "the two runs did not get the same token ids",
        "every number after this compares answers to different questions",
        "run both on the same ids, not on the same text",
    )  # fmt: skip


def _is_token_ids(pair: Pair) -> bool:
    name = pair.reference.name
    try:
        return (
            pair.reference.is_input
            and pair.reference.spec.dtype.kind in "iu"
            and "position" not in name
            and "embed" in name
        )
    except DumpError:
        return False


def _embedding(alignment: Alignment) -> Iterator[Finding]:
    """Looking up a table rounds nothing: if it differs, the alignment or the weights are wrong."""
    for pair in alignment.pairs:
        if _is_embedding(pair):
            if _same_type(pair) and not _equal(pair):
                yield Finding(
                    "warning", pair.reference.name, "the embedding's output is not bit-equal",
                    "a table look-up rounds nothing, so tokens, weights or scaling differ from the start",
                    "compare token ids and the embedding weights before reading any other number",
                )  # fmt: skip
            return


def _is_embedding(pair: Pair) -> bool:
    layer = pair.name.rpartition(".")[2]
    return layer in ("embed_tokens", "word_embeddings", "wte") and not pair.reference.is_input


def _same_type(pair: Pair) -> bool:
    try:
        return pair.reference.spec.dtype == pair.candidate.spec.dtype
    except DumpError:
        return False


def _equal(pair: Pair) -> bool:
    """Whether the values are equal; what cannot be read is for measuring to report."""
    try:
        ref, cand = pair.reference.read(), pair.candidate.read()
    except DumpError:
        return True
    if ref.size != cand.size:
        return False
    return _same_bits(ref, cand) or bool(np.array_equal(ref.reshape(-1), cand.reshape(-1)))


def _same_bits(ref: Array, cand: Array) -> bool:
    """Whether they are equal bit by bit, NaN included."""
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (ref, cand))
    return ref.dtype == cand.dtype and bool(np.array_equal(a, b))
