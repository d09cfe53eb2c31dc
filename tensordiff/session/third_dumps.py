"""Runs that are measured beside the two that are compared: one with injected inputs, one in higher precision.

Both are paired with the reference by the session's rules. A dump that pairs nothing is refused: it would answer for
no row, and everything would look as if it had not been given. So is an injected run that is not of the candidate, or
not of this reference (``injected_origin``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tensordiff.align.learn import Learned
from tensordiff.align.rules.file import RulesFile
from tensordiff.compare.comparer import Comparer, ThirdDump
from tensordiff.compare.limits import Limits
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.arithmetic import tf32_in
from tensordiff.dump.lint import Finding
from tensordiff.errors import AlignError, printable
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.quantized import layers_in_eight_bits
from tensordiff.session.request import Request
from tensordiff.session.rerun.injected_origin import origin_findings, refuse_other_origin
from tensordiff.session.run_facts import is_dense, run_dtypes
from tensordiff.util.remote import RemotePath
from tensordiff.weights.parameters import is_checkpoint


@dataclass(frozen=True)
class ThirdDumps:
    """The dumps beside reference and candidate, open."""

    injected: Dump | None = None
    """The candidate, run with the reference's inputs."""
    golden: Dump | None = None
    """A run in higher precision than both."""

    @classmethod
    def open(cls, request: Request) -> ThirdDumps:
        """Open those that a request names."""
        return cls(
            injected=None if request.injected is None else open_dump(request.injected),
            golden=None if request.golden is None else open_dump(request.golden),
        )

    def refuse_other_origin(self, reference: Dump, candidate: Dump) -> None:
        """Refuse an injected run that is known to be of something else than these two."""
        if self.injected is not None:
            refuse_other_origin(self.injected, reference, candidate)

    def findings(self, candidate: Dump) -> Iterator[Finding]:
        """What makes it doubtful that they belong to the candidate."""
        if self.injected is not None:
            yield from origin_findings(self.injected, candidate)

    def comparer(
        self, reference: Dump, candidate: Dump, rules: RulesFile, limits: Limits, learned: Learned | None = None
    ) -> Comparer:
        """A comparer that measures these beside each pair; ``learned`` is how the candidate's names differ."""
        third = _third(reference, self.injected, rules, learned), _third(reference, self.golden, rules, learned)
        are_parameters = is_checkpoint(reference) and is_checkpoint(candidate)
        dtypes, layers = run_dtypes(reference, candidate), layers_in_eight_bits(reference)
        is_remote = any(isinstance(dump.path, RemotePath) for dump in (reference, candidate))
        return Comparer(
            limits, *third, dtypes, are_parameters, layers, tf32_in(reference), is_dense(reference),
            reads_ahead=is_remote,
        )  # fmt: skip


def _third(reference: Dump, other: Dump | None, rules: RulesFile, learned: Learned | None) -> ThirdDump | None:
    if other is None:
        return None
    alignment = PairedDumps.align(reference, other, rules, learned=learned).alignment
    if not alignment.pairs:
        raise AlignError(
            f"{printable(other.path)}: none of its entries matches one of the reference; is it the same model?"
        )
    return ThirdDump.of(alignment)


def injected_path(candidate: Path) -> Path:
    """Where the injected run of a candidate is looked for: beside it, under its name with ``_injected``."""
    if isinstance(candidate, RemotePath):
        path: Path = candidate
    else:
        path = Path(os.path.abspath(candidate))  # noqa: PTH100 - "." and ".." have no name of their own
    stem, suffix = (path.stem, path.suffix) if path.is_file() else (path.name, "")
    return path.parent / f"{stem}_injected{suffix}"


def injected_beside(candidate: Path) -> Path | None:
    """The injected run that lies beside a candidate, if there is one."""
    path = injected_path(candidate)
    return path if path.exists() else None
