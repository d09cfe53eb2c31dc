"""``assert_agrees(reference, candidate)`` for tests: compare dumps or arrays, and write a report on failure.

    def test_port(tmp_path):
        assert_agrees("dumps/hf", "dumps/max", tolerances="tolerances.toml")

    def test_layer():
        assert_agrees({"mlp": theirs}, {"mlp": ours}, rtol=1e-3)

It decides as ``tensordiff compare`` does. Arrays may be numpy arrays, torch tensors, or anything that numpy can
convert; no framework is imported. Under pytest the report gets a default path, see ``pytest_plugin``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from tensordiff.disagreement import Disagreement, report_path
from tensordiff.library.comparison import ComparisonOptions, compare
from tensordiff.library.result import Result, ResultRow
from tensordiff.library.run_options import PathLike
from tensordiff.session.from_arrays import Arrays

__all__ = ["Disagreement", "assert_agrees"]

_NAMED = 5  # faults that the message lists


def assert_agrees(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    report: PathLike | None = None,
    **options: Unpack[ComparisonOptions],
) -> Result:
    """Raise a ``Disagreement`` that names the culprit unless the two sides agree; return the result if they do.

    Each side is the path of a dump, a source, or arrays by name in the order in which they were computed. ``options``
    are the keyword arguments of ``tensordiff.compare``. On failure ``report`` is written in the format of its suffix
    (``.html .md .txt .json .csv .png``), and ``result`` of the error holds everything that was measured.

    >>> from tensordiff.testing import assert_agrees
    >>> assert_agrees({"a": [1.0, 2.0]}, {"a": [1.0, 2.0]}).verdict
    'agrees'
    """
    __tracebackhide__ = True
    result = compare(reference, candidate, **options)
    if result.exit_status == 0:
        return result
    raise Disagreement(result.sentence, _detail(result), _report(result, report), result)


def _detail(result: Result) -> str:
    lines = ["", *(f"  {reason}" for reason in result.doubts)]
    if result.hint is not None:
        lines.append(f"looks like: {result.hint.sentence}")
    faults = [row for row in result.rows if row.verdict in ("diverges", "unknown")]
    lines += [_fault(row) for row in faults[:_NAMED]]
    if len(faults) > _NAMED:
        lines.append(f"  and {len(faults) - _NAMED} more")
    return "\n".join(lines)


def _fault(row: ResultRow) -> str:
    return f"  {row.verdict} {row.name}: {row.why}"


def _report(result: Result, wanted: PathLike | None) -> Path | None:
    default = report_path.get()
    path = Path(wanted) if wanted is not None else default() if default is not None else None
    return None if path is None else result.report(path)
