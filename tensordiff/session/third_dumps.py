"""Runs that are measured beside the two compared ones: one with injected inputs, one in higher precision (golden).

Both are paired with the reference by the session's rules. A dump that pairs with nothing is refused: it would have no
effect, as if it had not been given. An injected run that is not of the candidate, or not of this reference, is refused
as well (``injected_origin``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
from tensordiff.session.run_facts import has_experts, run_dtypes
from tensordiff.util.remote import RemotePath
from tensordiff.weights.parameters import is_checkpoint


@dataclass(frozen=True)
class ThirdDumps:
    """The open dumps beside reference and candidate."""

    injected: Dump | None = None
    """The candidate, run with the reference's inputs."""
    golden: Dump | None = None
    """A run in higher precision than both."""

    @classmethod
    def open(cls, request: Request) -> ThirdDumps:
        """Open the third dumps that a request names."""
        return cls(
            injected=None if request.injected is None else open_dump(request.injected),
            golden=None if request.golden is None else open_dump(request.golden),
        )

    def refuse_other_origin(self, reference: Dump, candidate: Dump) -> None:
        """Refuse an injected run that is known to belong to another candidate or reference."""
        if self.injected is not None:
            refuse_other_origin(self.injected, reference, candidate)

    def findings(self, candidate: Dump) -> Iterator[Finding]:
        """Findings on whether the injected run belongs to the candidate."""
        if self.injected is not None:
            yield from origin_findings(self.injected, candidate)

    def comparer(self, dumps: PairedDumps, limits: Limits, cluster: str | None = None) -> Comparer:
        """A comparer for the pairs of these dumps that also measures the third dumps, paired by the same rules."""
        reference, candidate = dumps.reference, dumps.candidate
        return Comparer(
            limits,
            injected=_paired_with(dumps, self.injected),
            golden=_paired_with(dumps, self.golden),
            run_dtypes=run_dtypes(reference, candidate),
            are_parameters=is_checkpoint(reference) and is_checkpoint(candidate),
            in_eight_bits=layers_in_eight_bits(reference),
            reference_tf32=tf32_in(reference),
            has_experts=has_experts(reference),
            cluster=cluster,
            reads_ahead=any(isinstance(dump.path, RemotePath) for dump in (reference, candidate)),
        )


def _paired_with(dumps: PairedDumps, other: Dump | None) -> ThirdDump | None:
    """A third dump, paired with the reference by the rules and by what was learned about the candidate's names."""
    if other is None:
        return None
    alignment = PairedDumps.align(dumps.reference, other, dumps.rules, learned=dumps.learned).alignment
    if not alignment.pairs:
        raise AlignError(
            f"{printable(other.path)}: none of its entries matches one of the reference; is it the same model?"
        )
    return ThirdDump.of(alignment)


def injected_path(candidate: Path) -> Path:
    """Where the injected run of a candidate is expected: beside it, under its name plus ``_injected``."""
    if isinstance(candidate, RemotePath):
        path: Path = candidate
    else:
        path = Path(os.path.abspath(candidate))  # noqa: PTH100 - "." and ".." have no name of their own
    stem, suffix = (path.stem, path.suffix) if path.is_file() else (path.name, "")
    return path.parent / f"{stem}_injected{suffix}"


def injected_beside(candidate: Path) -> Path | None:
    """The injected run beside a candidate, if there is one."""
    path = injected_path(candidate)
    return path if path.exists() else None
