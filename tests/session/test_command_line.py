"""The command that opens a comparison again, and what is said at the end of the app."""

from __future__ import annotations

import shlex
from pathlib import Path

from tensordiff.cli.commands.compare import command
from tensordiff.compare.limits import Limits
from tensordiff.compare.measure.dtype_plan import Tolerance
from tensordiff.session.command_line import closing_lines, comparison_words, reopen_command
from tensordiff.session.request import Request
from tensordiff.util.temporary_folders import temporary_folder
from tests.making import SAMPLES

REFERENCE, CANDIDATE = SAMPLES / "reference", SAMPLES / "candidate"


def test_all_that_was_said_is_said_again() -> None:
    request = Request(
        REFERENCE, CANDIDATE, rules=Path("r.toml"), golden=Path("g"), injected=Path("i"), tolerances=Path("t.toml"),
        limits=Limits(Tolerance(1e-6, 1e-3), 0.5), step=2, only="layers", min_coverage=10, allow_partial=True,
        learn=False, session=Path("s.json"),
    )  # fmt: skip
    words = comparison_words(request)
    context = command.make_context("compare", [str(REFERENCE), str(CANDIDATE), *words])
    said = {name: context.params[name] for name in ("rules", "golden", "injected", "tolerances", "session", "only")}
    assert said == {name: getattr(request, name) for name in said}
    numbers = {name: context.params[name] for name in ("atol", "rtol", "threshold", "step", "min_coverage")}
    assert numbers == {"atol": 1e-6, "rtol": 1e-3, "threshold": 0.5, "step": 2, "min_coverage": 10}
    assert (context.params["allow_partial"], context.params["learn"]) == (True, False)


def test_nothing_was_said() -> None:
    assert comparison_words(Request(REFERENCE, CANDIDATE)) == []
    assert shlex.split(reopen_command(Request(REFERENCE, CANDIDATE))) == ["tensordiff", str(REFERENCE), str(CANDIDATE)]


def test_where_everything_is(tmp_path: Path) -> None:
    kept = tmp_path / "session.json"
    request = Request(REFERENCE, CANDIDATE, rules=tmp_path / "rules.toml")
    lines = list(closing_lines(request, request, kept))
    assert [line.split()[0] for line in lines] == ["reference", "candidate", "rules", "open"]
    kept.write_text("{}")
    assert f"session    {kept}" in list(closing_lines(request, request, kept))


def test_what_goes_with_the_app_is_made_again_by_its_source() -> None:
    asked = Request(Path("hf:model"), CANDIDATE)
    with temporary_folder() as folder:
        lines = list(closing_lines(asked, Request(folder / "reference", CANDIDATE), None))
    assert lines[0].endswith("(temporary, deleted now; K in the app or --keep DIR keeps it)")
    assert lines[-1] == f"open again tensordiff --keep dumps hf:model {CANDIDATE}"
