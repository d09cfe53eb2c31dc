"""Checks that an injected run is a run of the candidate with the inputs of this reference.

A run of something else would turn culprits into victims, or the reverse. Facts that both manifests record must be
equal: source, weights, tokens. A dump that records nothing is accepted, with a finding that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensordiff.capture.job import parse_source
from tensordiff.dump import Dump
from tensordiff.dump.lint import Finding
from tensordiff.errors import AlignError, CaptureError, printable

_OWN_FORMAT = "tensordiff"
_LONGEST = 160
"""Characters of a fact that a sentence shows."""


def refuse_other_origin(injected: Dump, reference: Dump, candidate: Dump) -> None:
    """Raise ``AlignError`` if an injected run is known to be of something else."""
    again = "capture it again with tensordiff capture SOURCE --inject REF"
    names = {name for entry in injected.entries if entry.origin for name in entry.origin.injected or ()}
    if not names and injected.format == _OWN_FORMAT:
        raise AlignError(f"{printable(injected.path)}: was captured without injection; {again}")
    if names and names.isdisjoint(entry.name for entry in reference.entries):
        raise AlignError(
            f"{printable(injected.path)}: was given the inputs of another reference, for {printable(min(names))} "
            f"is not in {printable(reference.path)}; {again}"
        )
    for what, theirs, ours in _comparable_facts(injected, candidate):
        if theirs != ours and not (what == "source" and _is_same_checkpoint(injected, candidate)):
            raise AlignError(
                f"{printable(injected.path)}: is not a run of the candidate: its {what} is {_short(theirs)}, "
                f"the candidate's is {_short(ours)}; {again}, of the candidate's source"
            )


def origin_findings(injected: Dump, candidate: Dump) -> Iterator[Finding]:
    """A finding if it cannot be told whether the injected run is of the candidate."""
    if not any(True for _ in _comparable_facts(injected, candidate)):
        yield Finding(
            "note", "injected", "does not say which model it is a run of, or the candidate does not",
            "errors of another model's run would be taken for the candidate's own",
            "make sure that it is the candidate's, or capture both with tensordiff capture",
        )  # fmt: skip


def _comparable_facts(injected: Dump, candidate: Dump) -> Iterator[tuple[str, object, object]]:
    """Facts about the model that both manifests record: what the fact is called, and both values."""
    for fact, what, kind in (
        ("source", "source", str), ("weights_hash", "hash of the weights", str), ("token_ids", "list of tokens", list),
    ):  # fmt: skip
        theirs, ours = injected.facts.get(fact), candidate.facts.get(fact)
        if isinstance(theirs, kind) and isinstance(ours, kind):
            yield what, theirs, ours


def _is_same_checkpoint(injected: Dump, candidate: Dump) -> bool:
    """Whether two sources are the same model in different places: equal weights, and no user code."""
    try:
        sources: list[Any] = [parse_source(str(dump.facts["source"])) for dump in (injected, candidate)]
    except CaptureError:
        return False
    if None in sources or sources[0].kind != sources[1].kind or sources[0].function or sources[1].function:
        return False
    hashes = {dump.facts.get("weights_hash") for dump in (injected, candidate)}
    return len(hashes) == 1 and isinstance(hashes.pop(), str)


def _short(value: object) -> str:
    text = printable(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
