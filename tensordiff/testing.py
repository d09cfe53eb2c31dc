"""For tests: ``assert_agrees(reference, candidate)``, on dumps or on arrays, with a report where it fails.

    def test_port(tmp_path):
        assert_agrees("dumps/hf", "dumps/max", tolerances="tolerances.toml")

    def test_layer():
        assert_agrees({"mlp": theirs}, {"mlp": ours}, rtol=1e-3)

It judges as ``tensordiff compare`` does. Arrays are numpy's, torch's, or anything that numpy can make one of; no
framework is imported. Under pytest the report has a place to go to without being told, see ``pytest_plugin``.
"""

from __future__ import annotations

from pathlib import Path

from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.compare.row import Row
from tensordiff.disagreement import Disagreement, report_path
from tensordiff.report import write_report
from tensordiff.report.labels import label
from tensordiff.report.model import summary_sentence
from tensordiff.search.outcome import Outcome
from tensordiff.session.from_arrays import Arrays, PathLike, session_of
from tensordiff.session.session import Session

__all__ = ["Disagreement", "assert_agrees"]

_NAMED = 5  # faults that a message names


def assert_agrees(
    reference: PathLike | Arrays,
    candidate: PathLike | Arrays,
    *,
    rules: PathLike | None = None,
    tolerances: PathLike | None = None,
    golden: PathLike | Arrays | None = None,
    injected: PathLike | Arrays | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    threshold: float | None = None,
    step: int | None = None,
    only: str | None = None,
    min_coverage: float = 50.0,
    allow_partial: bool = False,
    learn: bool = True,
    report: PathLike | None = None,
) -> Outcome:
    """Raise a ``Disagreement`` that names the culprit, unless the two agree; then return what was measured.

    Each side is the path of a dump, or arrays by name in the order they were computed. The rest is as on the command
    line. On failure ``report`` is written, in the format of its suffix (``.html .md .txt .json .csv .png``).
    """
    __tracebackhide__ = True
    session = session_of(
        reference,
        candidate,
        golden=golden,
        injected=injected,
        rules=rules,
        tolerances=tolerances,
        limits=Limits(Tolerance.of(atol, rtol), threshold),
        step=step,
        only=only,
        min_coverage=min_coverage,
        allow_partial=allow_partial,
        learn=learn,
    )
    outcome = session.outcome(session.rows())
    if outcome.exit_status == 0:
        return outcome
    raise Disagreement(summary_sentence(outcome), _detail(session, outcome), _report(session, outcome, report))


def _detail(session: Session, outcome: Outcome) -> str:
    lines = ["", *(f"  {reason}" for reason in outcome.reasons)]
    if outcome.culprit is not None and (hint := session.hint(outcome.culprit)) is not None:
        lines.append(f"looks like: {hint.sentence}")
    faults = [row for row in outcome.rows if row.verdict.name in ("diverges", "unknown")]
    lines += [_fault(row) for row in faults[:_NAMED]]
    if len(faults) > _NAMED:
        lines.append(f"  and {len(faults) - _NAMED} more")
    return "\n".join(lines)


def _fault(row: Row) -> str:
    return f"  {row.verdict.name} {label(row.pair)}: {row.verdict.why}"


def _report(session: Session, outcome: Outcome, wanted: PathLike | None) -> Path | None:
    default = report_path.get()
    path = Path(wanted) if wanted is not None else default() if default is not None else None
    if path is not None:
        write_report(session, outcome, path)
    return path
