"""What ``tensordiff.compare`` gives: a verdict, the culprit, and a row for each pair of tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tensordiff.compare.hint import Hint
from tensordiff.compare.judge.verdict import VerdictName
from tensordiff.compare.lint import lint_rows
from tensordiff.compare.look.elements import Element
from tensordiff.compare.look.logits import LogitsDiff
from tensordiff.compare.measure.diff import Diff
from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import Entry
from tensordiff.errors import TensordiffError
from tensordiff.library.notebook import result_html
from tensordiff.report import write_report
from tensordiff.report.comparison_json import compare_json, row_json
from tensordiff.report.labels import GLYPHS, label
from tensordiff.report.model import summary_sentence
from tensordiff.search.outcome import Outcome
from tensordiff.session.command_line import comparison_words
from tensordiff.session.from_arrays import write_arrays
from tensordiff.session.session import Session
from tensordiff.util.mappings import count_losses, raise_losses
from tensordiff.util.nearest_name import nearest_name
from tensordiff.util.shell_line import shell_line
from tensordiff.util.temporary_folders import is_temporary

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

NUMBERS = (
    "max_abs", "max_rel", "mean_abs", "mse", "rms", "rel_l2", "cosine_distance", "outside", "elements",
)  # fmt: skip
"""The numbers of a row, as attributes and as columns."""
_TEMPORARY = (
    "the dumps are temporary, and are deleted when this Python program ends; tensordiff.compare(…, keep=DIR) keeps them"
)


@dataclass(frozen=True)
class ResultRow:
    """One pair of tensors: its names, numbers, verdict and, when asked for, its values."""

    session: Session
    measured: Row

    def __repr__(self) -> str:
        size = "" if self.rel_l2 is None else f" rel_l2={self.rel_l2:.2e}"
        return f"<{GLYPHS[self.verdict]} {self.verdict} {self.name}{size}>"

    @property
    def index(self) -> int:
        """Its place in execution order."""
        return self.measured.pair.index

    @property
    def name(self) -> str:
        """The layer, the port unless it is the output, the call and step unless the first."""
        return label(self.measured.pair)

    @property
    def layer(self) -> str:
        """The layer, as both sides call it after rules."""
        return self.measured.pair.name

    @property
    def port(self) -> str:
        """What it is of the layer: ``output``, ``input_0``, …."""
        return self.measured.pair.reference.port

    @property
    def step(self) -> int:
        """0 for the prompt, then one for each decoded token."""
        return self.measured.pair.reference.step

    @property
    def reference_name(self) -> str:
        """The tensor's name in the reference."""
        return self.measured.pair.reference.name

    @property
    def candidate_name(self) -> str:
        """The tensor's name in the candidate."""
        return self.measured.pair.candidate.name

    @property
    def verdict(self) -> VerdictName:
        """``agrees``, ``drifts`` (its input already differed), ``diverges`` or ``unknown``."""
        return self.measured.verdict.name

    @property
    def why(self) -> str:
        """The reason for the verdict, in a sentence."""
        return self.measured.verdict.why

    @property
    def diff(self) -> Diff | None:
        """All numbers; None where the two could not be compared."""
        return self.measured.diff

    @property
    def injected(self) -> Diff | None:
        """The same with the reference's inputs given to the layer, from ``injected=``."""
        return self.measured.injected

    @property
    def golden_ratio(self) -> float | None:
        """How many times the reference's own error against the golden run; None without one."""
        return self.measured.golden_ratio

    @property
    def amplification(self) -> float | None:
        """``rel_l2`` over that of the layer's input; None where that is not known."""
        return self.measured.amplification

    @property
    def shape(self) -> tuple[int, ...] | None:
        """Of both sides, after views; None where they have none in common."""
        return self.measured.shape

    @property
    def dtypes(self) -> tuple[str, str] | None:
        """Of the reference and the candidate."""
        return self.measured.dtypes

    @property
    def max_abs(self) -> float | None:
        """The largest |candidate - reference|; None, as all numbers, where the two could not be compared."""
        return self.diff and self.diff.max_abs

    @property
    def max_rel(self) -> float | None:
        """The largest |candidate - reference| / max(|reference|, 1e-10)."""
        return self.diff and self.diff.max_rel

    @property
    def mean_abs(self) -> float | None:
        """The mean of |candidate - reference|."""
        return self.diff and self.diff.mean_abs

    @property
    def mse(self) -> float | None:
        """The mean squared error."""
        return self.diff and self.diff.mse

    @property
    def rms(self) -> float | None:
        """The root of ``mse``."""
        return self.diff and self.diff.rms

    @property
    def rel_l2(self) -> float | None:
        """The norm of the difference over that of the reference."""
        return self.diff and self.diff.rel_l2

    @property
    def cosine_distance(self) -> float | None:
        """1 minus the cosine of the angle between the two."""
        return self.diff and self.diff.cosine_distance

    @property
    def outside(self) -> int | None:
        """How many elements are outside of the tolerance."""
        return self.diff and self.diff.outside

    @property
    def elements(self) -> int | None:
        """How many elements were compared."""
        return self.diff and self.diff.elements

    @cached_property
    def reference(self) -> Array:
        """The reference's values, read when first asked for, in the shape that they were compared in."""
        return self._values[0]

    @cached_property
    def candidate(self) -> Array:
        """The candidate's values, read when first asked for, in the shape that they were compared in."""
        return self._values[1]

    @cached_property
    def _values(self) -> tuple[Array, Array]:
        """Copies of both sides; as they are in their dumps where they have no common shape. Raises ``DumpError``."""
        before = count_losses()
        pair = self.measured.pair
        values = values_of(pair) or (pair.reference.read(), pair.candidate.read())
        copies = np.array(values[0]), np.array(values[1])
        raise_losses(before, pair.reference.name)
        return copies

    def worst(self, count: int = 10) -> list[Element]:
        """The largest errors: ``index``, ``reference``, ``candidate``, ``error``."""
        return self.session.worst(self.measured, count)

    @cached_property
    def hint(self) -> Hint | None:
        """What kind of error it looks like (``.sentence``); None where it agrees or no known pattern matches."""
        if self.verdict not in ("drifts", "diverges"):
            return None
        return self.session.hint(self.measured)

    def to_dict(self) -> dict[str, Any]:
        """Names, numbers and verdict, flat, for a table."""
        whole = row_json(self.measured)
        reference_dtype, candidate_dtype = self.dtypes or (None, None)
        keys = ("index", "name", "port", "step", "call", "verdict", "why", "by", "reference", "candidate")
        return {
            **{key: whole[key] for key in keys},
            "shape": None if self.shape is None else list(self.shape),
            "reference_dtype": reference_dtype, "candidate_dtype": candidate_dtype,
            **{key: getattr(self, key) for key in NUMBERS},
            "injected_rel_l2": self.injected and self.injected.rel_l2,
            "golden_ratio": self.golden_ratio, "amplification": self.amplification,
        }  # fmt: skip


@dataclass(frozen=True)
class Result:
    """A whole comparison.

    It is true in a condition where the two agree. In a notebook it shows itself as a table, the culprit on top.
    """

    session: Session
    outcome: Outcome
    arrays: tuple[Any, Any] = (None, None)
    """Sides that were given as arrays, for ``open``."""

    def __bool__(self) -> bool:
        return self.outcome.exit_status == 0

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[ResultRow]:
        return iter(self.rows)

    def __repr__(self) -> str:
        return f"<{self.verdict}: {self.sentence}>"

    def _repr_html_(self) -> str:
        return result_html(self.outcome, self.sentence, self.hint)

    @property
    def verdict(self) -> VerdictName:
        """``agrees``, ``drifts`` (nothing is wrong by itself), ``diverges``, or ``unknown``: see ``doubts``."""
        return self.outcome.verdict

    @property
    def exit_status(self) -> int:
        """What ``tensordiff compare`` would exit with: 0 agrees, 1 diverges, 2 inconclusive."""
        return self.outcome.exit_status

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        return summary_sentence(self.outcome)

    @cached_property
    def rows(self) -> tuple[ResultRow, ...]:
        """One for each pair, in execution order."""
        return tuple(ResultRow(self.session, row) for row in self.outcome.rows)

    @cached_property
    def culprit(self) -> ResultRow | None:
        """The first layer that is wrong although its inputs are right; None where there is none."""
        return next(iter(self.culprits), None)

    @cached_property
    def culprits(self) -> tuple[ResultRow, ...]:
        """All of them, in execution order."""
        return tuple(ResultRow(self.session, row) for row in self.outcome.culprits)

    @property
    def hint(self) -> Hint | None:
        """The culprit's."""
        return None if self.culprit is None else self.culprit.hint

    @cached_property
    def logits(self) -> LogitsDiff | None:
        """How far apart the logits are: ``kl_div``, ``top_1``, …; None where none were dumped."""
        return self.session.logits(self.outcome.rows)

    @property
    def coverage(self) -> float:
        """The share of each side's outputs that was compared; the lower of both."""
        return (self.outcome.coverage or self.session.alignment.coverage).share

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why it cannot be said that the two agree, a sentence each."""
        return self.outcome.reasons

    @property
    def reference_orphans(self) -> tuple[Entry, ...]:
        """Tensors of the reference that have no partner."""
        return self.session.alignment.reference_orphans

    @property
    def candidate_orphans(self) -> tuple[Entry, ...]:
        """Tensors of the candidate that have no partner."""
        return self.session.alignment.candidate_orphans

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What sanity checks found: other token ids, other configs, suspicious values."""
        return (*self.session.header_findings(), *lint_rows(self.outcome.rows))

    def row(self, name: str | int) -> ResultRow:
        """The row of a name, as ``row.name`` spells it, the first of a layer, or the one that has this ``row.index``.

        Raises ``KeyError`` with the nearest name, or with the indexes where several rows have the name.
        """
        if isinstance(name, int):
            found = next((one for one in self.rows if one.index == name), None)
            if found is None:
                raise KeyError(f"no row has the index {name}; there are {len(self.rows)} rows")
            return found
        named = [one for one in self.rows if one.name == name]
        if len(named) > 1:
            indexes = ", ".join(str(one.index) for one in named)
            raise KeyError(f"{len(named)} rows are called {name!r}; give an index: {indexes}")
        if named or (named := [one for one in self.rows if one.layer == name]):
            return named[0]
        near = nearest_name(name, (one.name for one in self.rows))
        raise KeyError(f"no row is called {name!r}" + (f"; the nearest is {near!r}" if near else ""))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as plain dicts, flat."""
        return [row.to_dict() for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The object that ``tensordiff compare --json`` prints; numbers that are not finite are still floats."""
        return compare_json(self.session, self.outcome, self.findings, self.logits, self.hint)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as a pandas DataFrame; pandas must be installed."""
        import pandas as pd

        return pd.DataFrame(self.to_dicts())

    def to_polars(self) -> pl.DataFrame:
        """The rows as a polars DataFrame; polars must be installed."""
        import polars as pl

        return pl.DataFrame(self.to_dicts(), infer_schema_length=None)

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write a report, in the format of the suffix: ``.html .md .txt .json .csv .png``; gives the path back."""
        write_report(self.session, self.outcome, path, title=title)
        return Path(path)

    def open(self) -> int:
        """Open the app on the same comparison, in this terminal, and wait for it to end; its exit status.

        Arrays in memory are written to dumps for it: into the folder ``keep`` of ``compare``, or into temporary ones.
        """
        command = self._command()
        goes = any(is_temporary(Path(side)) for side in command[:2])
        if not (os.isatty(0) and os.isatty(1)):
            line = shell_line(["tensordiff", *command])
            while_it_runs = f" ({_TEMPORARY})" if goes else ""
            raise TensordiffError(
                f"there is no terminal to open the app in; write a report, or run in one: {line}{while_it_runs}"
            )
        # -P: what lies in the current folder must not be imported instead of tensordiff and what it needs.
        command = [sys.executable, "-P", "-m", "tensordiff", *command, *["--temporary"] * goes]
        # The environment is given because a program that imported MAX has another: Mojo sets PYTHONEXECUTABLE in C.
        return subprocess.run(command, check=False, env=dict(os.environ)).returncode  # noqa: S603 - our own program

    def _command(self) -> list[str]:
        return [*self._paths, *comparison_words(self.session.request)]

    @cached_property
    def _paths(self) -> list[str]:
        """Both sides on disk; arrays are written once."""
        keep, dumps = self.session.request.keep, (self.session.reference, self.session.candidate)
        return [
            str(dump.path if arrays is None else write_arrays(name, arrays, keep))
            for name, dump, arrays in zip(("reference", "candidate"), dumps, self.arrays, strict=True)
        ]
