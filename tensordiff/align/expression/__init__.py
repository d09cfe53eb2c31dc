"""A small language that says how one tensor is made of others, in three tenses: parse, plan, do.

``cat(layers.{i}.q_proj, layers.{i}.k_proj)`` in a ``[[map]]`` is an expression; ``squeeze 0 | flatten 0 1``
in a ``[[view]]`` is the same functions in a chain, applied to the entry at hand. ``parse`` and
``parse_view`` make a tree of text, ``plan`` gives its shape and dtype and ``steps`` its trace from
headers alone, ``evaluate`` reads the values. Whatever a person types, the only way to fail is
``ExpressionError``: a sentence, the text, and a caret under the token. Nothing else in tensordiff
reads such text, and nothing here runs it as code.
"""

from tensordiff.align.expression.evaluate import evaluate
from tensordiff.align.expression.lexer import FUNCTIONS, ExpressionError, SourceSpan
from tensordiff.align.expression.parse import parse, parse_view
from tensordiff.align.expression.plan import PlanStep, plan, steps
from tensordiff.align.expression.tree import (
    HERE,
    Call,
    Expression,
    Name,
    bind,
    bindings,
    generalize,
    names,
    placeholders,
    view_of,
)

__all__ = [
    "FUNCTIONS",
    "HERE",
    "Call",
    "Expression",
    "ExpressionError",
    "Name",
    "PlanStep",
    "SourceSpan",
    "bind",
    "bindings",
    "evaluate",
    "generalize",
    "names",
    "parse",
    "parse_view",
    "placeholders",
    "plan",
    "steps",
    "view_of",
]
