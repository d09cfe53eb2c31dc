"""The result of ``tensordiff.compare``: a verdict, the culprit, and a row for each pair of tensors."""

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
"""Numbers of a row that are attributes and table columns."""
_TEMPORARY = (
    "the dumps are temporary, and are deleted when this Python program ends; tensordiff.compare(…, keep=DIR) keeps them"
)


@dataclass(frozen=True)
class ResultRow:
    """One pair of tensors: names, numbers, verdict and, on request, values."""

    session: Session
    measured: Row

    def __repr__(self) -> str:
        size = "" if self.rel_l2 is None else f" rel_l2={self.rel_l2:.2e}"
        return f"<{GLYPHS[self.verdict]} {self.verdict} {self.name}{size}>"

    @property
    def index(self) -> int:
        """The position in execution order."""
        return self.measured.pair.index

    @property
    def name(self) -> str:
        """The label: layer, port unless it is the output, call and step unless they are the first."""
        return label(self.measured.pair)

    @property
    def layer(self) -> str:
        """The layer's name after rules were applied, the same for both sides."""
        return self.measured.pair.name

    @property
    def port(self) -> str:
        """The port of the layer: ``output``, ``input_0``, …."""
        return self.measured.pair.reference.port

    @property
    def step(self) -> int:
        """The step: 0 for the prompt, then one for each decoded token."""
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
        """The reason for the verdict, as a sentence."""
        return self.measured.verdict.why

    @property
    def diff(self) -> Diff | None:
        """All numbers; None if the two tensors could not be compared."""
        return self.measured.diff

    @property
    def injected(self) -> Diff | None:
        """The numbers of the run with injected inputs (``injected=``)."""
        return self.measured.injected

    @property
    def golden_ratio(self) -> float | None:
        """The candidate's error against the golden run, divided by the reference's; None without a golden run."""
        return self.measured.golden_ratio

    @property
    def amplification(self) -> float | None:
        """``rel_l2`` divided by that of the layer's input; None if the input's error is unknown."""
        return self.measured.amplification

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The common shape after views; None if there is none."""
        return self.measured.shape

    @property
    def dtypes(self) -> tuple[str, str] | None:
        """The element types of the reference and the candidate."""
        return self.measured.dtypes

    @property
    def max_abs(self) -> float | None:
        """The largest |candidate - reference|; None, like all numbers, if the two could not be compared."""
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
        """The square root of ``mse``."""
        return self.diff and self.diff.rms

    @property
    def rel_l2(self) -> float | None:
        """The norm of the difference divided by the norm of the reference."""
        return self.diff and self.diff.rel_l2

    @property
    def cosine_distance(self) -> float | None:
        """1 minus the cosine of the angle between the two."""
        return self.diff and self.diff.cosine_distance

    @property
    def outside(self) -> int | None:
        """The number of elements outside the tolerance."""
        return self.diff and self.diff.outside

    @property
    def elements(self) -> int | None:
        """The number of elements compared."""
        return self.diff and self.diff.elements

    @cached_property
    def reference(self) -> Array:
        """The reference's values in the compared shape, read on first access."""
        return self._values[0]

    @cached_property
    def candidate(self) -> Array:
        """The candidate's values in the compared shape, read on first access."""
        return self._values[1]

    @cached_property
    def _values(self) -> tuple[Array, Array]:
        """Copies of both sides, in their dumped shapes if they have no common one. Raises ``DumpError``."""
        before = count_losses()
        pair = self.measured.pair
        values = values_of(pair) or (pair.reference.read(), pair.candidate.read())
        copies = np.array(values[0]), np.array(values[1])
        raise_losses(before, pair.reference.name)
        return copies

    def worst(self, count: int = 10) -> list[Element]:
        """The largest errors, each with ``index``, ``reference``, ``candidate`` and ``error``."""
        return self.session.worst(self.measured, count)

    @cached_property
    def hint(self) -> Hint | None:
        """The kind of error (``.sentence``); None if the row agrees or no known pattern matches."""
        if self.verdict not in ("drifts", "diverges"):
            return None
        return self.session.hint(self.measured)

    def to_dict(self) -> dict[str, Any]:
        """Names, numbers and verdict as one flat dict, for tables."""
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
    """The result of a comparison.

    It is true in a boolean context if the two sides agree. A notebook shows it as a table with the culprit on top.
    """

    session: Session
    outcome: Outcome
    arrays: tuple[Any, Any] = (None, None)
    """The sides that were given as arrays; ``open`` writes them to disk."""

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
        """``agrees``, ``drifts`` (no layer is wrong by itself), ``diverges``, or ``unknown`` (see ``doubts``)."""
        return self.outcome.verdict

    @property
    def exit_status(self) -> int:
        """The exit status of ``tensordiff compare``: 0 agrees, 1 diverges, 2 inconclusive."""
        return self.outcome.exit_status

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        return summary_sentence(self.outcome)

    @cached_property
    def rows(self) -> tuple[ResultRow, ...]:
        """A row for each pair, in execution order."""
        return tuple(ResultRow(self.session, row) for row in self.outcome.rows)

    @cached_property
    def culprit(self) -> ResultRow | None:
        """The first layer that is wrong although its inputs are right; None if there is none."""
        return next(iter(self.culprits), None)

    @cached_property
    def culprits(self) -> tuple[ResultRow, ...]:
        """All culprits, in execution order."""
        return tuple(ResultRow(self.session, row) for row in self.outcome.culprits)

    @property
    def hint(self) -> Hint | None:
        """The culprit's hint."""
        return None if self.culprit is None else self.culprit.hint

    @cached_property
    def logits(self) -> LogitsDiff | None:
        """How far the logits are apart (``kl_div``, ``top_1``, …); None if no logits were dumped."""
        return self.session.logits(self.outcome.rows)

    @property
    def coverage(self) -> float:
        """The share of outputs that were compared, on the side with the smaller share."""
        return (self.outcome.coverage or self.session.alignment.coverage).share

    @property
    def doubts(self) -> tuple[str, ...]:
        """Reasons why the two sides cannot be said to agree, one sentence each."""
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
        """What the sanity checks found: different token ids, different configs, suspicious values."""
        return (*self.session.header_findings(), *lint_rows(self.outcome.rows))

    def row(self, name: str | int) -> ResultRow:
        """Return a row by its label (``row.name``), by its layer (the first row of it), or by its ``row.index``.

        Raises ``KeyError`` with the nearest name, or with the indexes if several rows have that name.
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
        """The rows as flat dicts."""
        return [row.to_dict() for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        """The object that ``tensordiff compare --json`` prints, with non-finite numbers still as floats."""
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
        """Write a report in the format of the suffix (``.html .md .txt .json .csv .png``) and return its path."""
        write_report(self.session, self.outcome, path, title=title)
        return Path(path)

    def open(self) -> int:
        """Open the app on this comparison in the current terminal, wait for it to end, and return its exit status.

        Arrays in memory are first written as dumps: into the ``keep`` folder of ``compare``, or into temporary folders.
        """
        command = self._command()
        goes = any(is_temporary(Path(side)) for side in command[:2])
        if not (os.isatty(0) and os.isatty(1)):
            line = shell_line(["tensordiff", *command])
            while_it_runs = f" ({_TEMPORARY})" if goes else ""
            raise TensordiffError(
                f"there is no terminal to open the app in; write a report, or run in one: {line}{while_it_runs}"
            )
        # -P: a module in the current folder must not be imported instead of tensordiff or its dependencies.
        command = [sys.executable, "-P", "-m", "tensordiff", *command, *["--temporary"] * goes]
        # Pass the environment explicitly: importing MAX changes it in C (Mojo sets PYTHONEXECUTABLE), unseen by
        # os.environ.
        return subprocess.run(command, check=False, env=dict(os.environ)).returncode  # noqa: S603 - our own program

    def _command(self) -> list[str]:
        return [*self._paths, *comparison_words(self.session.request)]

    @cached_property
    def _paths(self) -> list[str]:
        """The paths of both sides; arrays are written once."""
        keep, dumps = self.session.request.keep, (self.session.reference, self.session.candidate)
        return [
            str(dump.path if arrays is None else write_arrays(name, arrays, keep))
            for name, dump, arrays in zip(("reference", "candidate"), dumps, self.arrays, strict=True)
        ]
