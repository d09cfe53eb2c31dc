"""Expressions at random: trees that parse, the words they are made of, and text close to both."""

from __future__ import annotations

from hypothesis import strategies as st

from tensordiff.align.expression import FUNCTIONS, HERE, Call, Expression, Name
from tensordiff.align.expression.lexer import Function, Option, ParameterKind
from tensordiff.dump.dtypes import DTYPES

ENTRIES = ("x", "y", "z")
PLAIN_NAMES = (
    "x",
    "layers.{i}.mlp-input_0",
    "layers.0.mlp-output_1",
    "lm_head(2)-output",
    "h.{j}.attn.{k}",
    "blocks[/0]",
    "/model/layers.0/MatMul",
    "silu",
    "none",
    "float32",
    "axis",
)
ODD_NAMES = ("cat(2)", "0", "-1.5", "a b", 'say "hi"', "back\\slash", "{x}", "é(", "a,b", "'", "\n", "|", "=")
WORDS = (*FUNCTIONS, *PLAIN_NAMES, "0", "1", "-1", "2", "9", "1e5", "none", "float32", "axis", "{", '"', "'", "\\")
MARKS = ("(", ")", ",", "=", "|", " ")

entry_names = st.one_of(st.sampled_from(PLAIN_NAMES + ODD_NAMES), st.text(min_size=1, max_size=8))
small = st.integers(-3, 5)
_OPTIONS: dict[ParameterKind, st.SearchStrategy[Option]] = {
    "int": small,
    "int or none": st.none() | small,
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "dtype": st.sampled_from(sorted(DTYPES)),
}


def _options(function: Function) -> st.SearchStrategy[tuple[Option, ...]]:
    if function.rest is not None:
        return st.lists(small, min_size=1, max_size=4).map(tuple)
    return st.tuples(*(_OPTIONS[parameter.kind] for parameter in function.parameters))


@st.composite
def _calls(draw: st.DrawFn, tensors: st.SearchStrategy[Expression]) -> Expression:
    word = draw(st.sampled_from(sorted(FUNCTIONS)))
    function = FUNCTIONS[word]
    most = function.tensors + 2 * function.more_tensors
    inner = draw(st.lists(tensors, min_size=function.tensors, max_size=most))
    return Call(word, tuple(inner), draw(_options(function)))


def expressions(names: st.SearchStrategy[str]) -> st.SearchStrategy[Expression]:
    """Trees of any functions over these names."""
    return st.recursive(names.map(Name), _calls, max_leaves=6)


@st.composite
def views(draw: st.DrawFn) -> Expression:
    """Chains of one to four steps."""
    view: Expression = HERE
    for word in draw(
        st.lists(st.sampled_from(sorted(w for w, f in FUNCTIONS.items() if f.is_view)), min_size=1, max_size=4)
    ):
        view = Call(word, (view,), draw(_options(FUNCTIONS[word])))
    return view


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """The text of an expression or view with a stretch of it replaced."""
    text = str(draw(expressions(entry_names) | views()))
    start, stop = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
    return text[:start] + draw(st.sampled_from(WORDS + MARKS) | st.text(max_size=2)) + text[stop:]


soup = st.lists(st.sampled_from(WORDS + MARKS), max_size=20).map("".join)
any_text = st.one_of(st.text(max_size=40), soup, damaged())
