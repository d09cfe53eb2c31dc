"""A small language for tensors that are computed from others: parse, plan, evaluate.

``cat(layers.{i}.q_proj, layers.{i}.k_proj)`` in a ``[[map]]`` is an expression; ``squeeze 0 | flatten 0 1`` in a
``[[view]]`` is a chain of the same functions, applied to the entry at hand. ``parse`` and ``parse_view`` turn text into
a tree, ``plan`` computes its shape and dtype and ``steps`` its trace from headers alone, ``evaluate`` reads the values.
Whatever the user types, the only failure is ``ExpressionError``: a sentence, the text, and a caret under the token.
Expressions are never run as code.
"""

from tensordiff.align.expression.evaluate import evaluate, evaluate_view
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
    "evaluate_view",
    "generalize",
    "names",
    "parse",
    "parse_view",
    "placeholders",
    "plan",
    "steps",
    "view_of",
]
