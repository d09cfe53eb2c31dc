"""Options that several commands share, spelled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]

DUMP = click.Path(path_type=Path)


def comparison(function: Command) -> Command:
    """What to compare and how: the contract's common options."""
    return _with(function, _SIDES + _COMPARISON)


def how_compared(function: Command) -> Command:
    """How to compare: the common options without the two sides."""
    return _with(function, _COMPARISON)


def _with(function: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        function = option(function)
    return function


class _Amount(click.types.FloatParamType):
    """A tolerance, refused before anything is opened."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """What was typed, as a number."""
        from tensordiff.align.rules.tables import check_amount
        from tensordiff.errors import AlignError

        amount = super().convert(value, param, ctx)
        try:
            check_amount(param.name or "it" if param else "it", amount)
        except AlignError as error:
            self.fail(str(error), param, ctx)
        return amount


_AMOUNT = _Amount()
_SIDES = (click.argument("reference", type=DUMP), click.argument("candidate", type=DUMP))
_COMPARISON = (
    click.option("--rules", type=DUMP, metavar="FILE", help="Rules (TOML) that make names alike."),
    click.option("--session", type=DUMP, metavar="FILE", help="A session file of the app: its rules, its search."),
    click.option("--tolerances", type=DUMP, metavar="FILE", help="Tolerances (TOML) by layer; made by tolerances -o."),
    click.option("--golden", type=DUMP, metavar="DUMP", help="The run in higher precision: each side's own error."),
    click.option("--injected", type=DUMP, metavar="DUMP", help="The candidate given the reference's inputs."),
    click.option("--atol", type=_AMOUNT, metavar="X", help="Absolute tolerance. If only one is given, the other is 0."),
    click.option("--rtol", type=_AMOUNT, metavar="X", help="Tolerance relative to |reference|."),
    click.option("--threshold", type=_AMOUNT, metavar="X", help="Largest rel_l2 that still agrees."),
    click.option("--step", type=click.IntRange(min=0), metavar="N", help="Only this step of the run."),
    click.option("--only", metavar="REGEX", help="Only layers whose name matches."),
)  # fmt: skip

json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout, nothing else.")
junit_option = click.option("--junit", type=DUMP, metavar="FILE", help="Write JUnit XML for a CI, a test case a pair.")
