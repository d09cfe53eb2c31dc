"""Text to tree and back, and errors that point at the token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.align.expression import (
    FUNCTIONS,
    HERE,
    Call,
    Expression,
    ExpressionError,
    Name,
    parse,
    parse_view,
    view_of,
)
from tensordiff.align.expression.evaluate import EVALUATORS
from tensordiff.align.expression.lexer import MAX_CHARACTERS
from tensordiff.align.expression.parse import MAX_DEPTH
from tensordiff.align.expression.plan import SHAPE_RULES
from tensordiff.errors import AlignError
from tests.align.expression.strategies import any_text, entry_names, expressions, views


def test_every_function_is_known_to_parse_plan_and_do() -> None:
    assert FUNCTIONS.keys() == SHAPE_RULES.keys() == EVALUATORS.keys()


@settings(deadline=None)
@given(expressions(entry_names))
def test_the_text_of_a_tree_parses_to_that_tree(tree: Expression) -> None:
    assert parse(str(tree)) == tree


@settings(deadline=None)
@given(views())
def test_the_text_of_a_view_parses_to_that_view(view: Expression) -> None:
    assert parse_view(str(view)) == view


@settings(deadline=None)
@given(views(), entry_names)
def test_a_view_is_the_same_functions_with_the_entry_as_first_argument(view: Expression, name: str) -> None:
    applied = view_of(view, Name(name))
    assert parse(str(applied)) == applied
    assert view_of(applied, Name("other")) == applied


@settings(deadline=None, max_examples=400)
@given(any_text)
def test_any_text_is_read_or_refused_with_a_place_in_it(text: str) -> None:
    for read in (parse, parse_view):
        try:
            tree = read(text)
        except ExpressionError as error:
            assert error.span is not None
            assert error.span.text == text
            assert error.column is not None
            assert 1 <= error.column <= len(text) + 1
            lines = str(error).split("\n")
            assert len(lines) == 3
            assert all(line.isprintable() for line in lines)
        else:
            assert read(str(tree)) == tree


@pytest.mark.parametrize(
    "name",
    [
        "layers.{i}.mlp-input_0",
        "layers.0.mlp-output_1",
        "lm_head(2)-output",
        "blocks[0].mlp",
        "/model/layers.0/MatMul_output_0",
        "0.conv",
        "cat",
        "layers.0.silu(2)",
    ],
)
def test_names_that_need_no_quotes(name: str) -> None:
    assert parse(name) == Name(name)
    assert parse(f"relu({name})") == Call("relu", (Name(name),))
    assert str(Name(name)) == name


def test_names_in_quotes() -> None:
    assert parse('"blocks[/0]"') == Name("blocks[/0]") == parse("'blocks[/0]'")
    assert parse(r'"say \"hi\" \\"') == Name('say "hi" \\')
    assert parse('relu("silu(2)")') == Call("relu", (Name("silu(2)"),))


def test_a_name_says_layer_port_and_call() -> None:
    assert parse("lm_head(2)-output_1").parts == ("lm_head", "output_1", 2)  # type: ignore[union-attr]
    assert parse("layers.{i}.mlp").parts == ("layers.{i}.mlp", "output", 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("cat( a,b , axis = -1)", "cat(a, b)"),
        ("cat(a, b, axis=0)", "cat(a, b, axis=0)"),
        ("slice(x, 1, none, none)", "slice(x, 1)"),
        ("slice(x, stop=5, axis=+1)", "slice(x, 1, none, 5)"),
        ("split(x, 0, 3, 0)", "split(x, 0, 3, axis=0)"),
        ("scale(x, 2.0)", "scale(x, 2)"),
        ("scale(x, 1e-3)", "scale(x, 0.001)"),
        ("mul(silu(gate),\n up)", "mul(silu(gate), up)"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


def test_views_are_chains() -> None:
    assert parse_view("last_token") == Call("last_token", (HERE,))
    chain = parse_view("squeeze 0|flatten 0 last=1")
    assert chain == Call("flatten", (Call("squeeze", (HERE,), (0,)),), (0, 1))
    assert str(chain) == "squeeze 0 | flatten 0 1"
    assert str(view_of(chain, parse("sum(a, b)"))) == "flatten(squeeze(sum(a, b), 0), 0, 1)"


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("", 1, "a tensor is expected"),
        ("cat(a, b", 9, "the end of the text"),
        ("cat(a)", 1, "at least 2 tensors, and got 1"),
        ("cat(a, b, -1)", 11, "axis=-1"),
        ("cat(a, b, axes=1)", 11, "no option 'axes'"),
        ("cat(a, b, axis=x)", 16, "a whole number"),
        ("mul(a, sqeeze(b, 0))", 8, "did you mean squeeze?"),
        ("norm (2)", 1, "not a function"),
        ("silu(2)", 6, 'write "2"'),
        ("silu(a, 1)", 9, "no options"),
        ("silu(a,)", 8, "an option is expected"),
        ("silu(a b)", 8, "',' or ')'"),
        ("relu(a) b", 9, "should end"),
        ("squeeze(x | relu)", 11, "',' or ')'"),
        ("x | squeeze 0", 3, "nested"),
        ("squeeze(x)", 1, "needs axis"),
        ("squeeze(x, 0, 1)", 15, "one too many"),
        ("squeeze(x, 0.5)", 12, "a whole number"),
        ("squeeze(x, 9999999999999999999)", 12, "a whole number"),
        ("slice(x, 1, start=0, start=1)", 22, "given twice"),
        ("reshape(x)", 1, "at least one size"),
        ("reshape(x, size=1)", 12, "no option"),
        ("cast(x, bf16)", 9, "did you mean bfloat16?"),
        ("scale(x, 1e999)", 10, "finite"),
        ("layers.{x}.y", 8, "{i}, {j} or {k}"),
        ('cat(a, "b', 8, "never closed"),
        ('cat("", b)', 5, "cannot be empty"),
        ("a*b", 2, "double quotes"),
    ],
)
def test_a_wrong_expression_is_pointed_at(text: str, column: int, part: str) -> None:
    with pytest.raises(AlignError) as caught:
        parse(text)
    assert isinstance(caught.value, ExpressionError)
    assert part in caught.value.sentence
    assert caught.value.column == column


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("", 1, "a function"),
        ("squeeze 0 |", 12, "a function"),
        ("squeeze 0 | nothing", 13, "not a function"),
        ("squeeze(0)", 8, "by spaces"),
        ("cat 0", 1, "more than one tensor"),
        ("squeeze 0 flatten 0 1", 11, "joined by '|'"),
        ('squeeze "0"', 9, "an option is expected"),
    ],
)
def test_a_wrong_view_is_pointed_at(text: str, column: int, part: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_view(text)
    assert part in caught.value.sentence
    assert caught.value.column == column


def test_the_caret_stands_under_the_token() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("cat(a\t, sqeeze(b))")
    _, line, carets = str(caught.value).split("\n")
    assert line == r"  cat(a\t, sqeeze(b))"
    assert line[carets.index("^") : carets.rindex("^") + 1] == "sqeeze"


def test_the_caret_of_a_long_text_stays_in_sight() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(f"cat({'a, ' * 1000}sqeeze(b){', a' * 1000})")
    _, line, carets = str(caught.value).split("\n")
    assert len(line) < 120
    assert line[carets.index("^") : carets.rindex("^") + 1] == "sqeeze"


def test_control_characters_never_reach_the_terminal() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse('sqeeze("\x1b[31m")')
    assert "\x1b" not in str(caught.value)


@settings(deadline=None)
@given(st.integers(1, 3), st.sampled_from(["silu(", "cat(a, ", "(", "silu(silu "]))
def test_depth_has_a_limit(factor: int, opening: str) -> None:
    with pytest.raises(ExpressionError):
        parse(opening * factor * 1000)


def test_the_deepest_tree_and_chain_are_read() -> None:
    deepest = "relu(" * (MAX_DEPTH - 1) + "x" + ")" * (MAX_DEPTH - 1)
    assert str(parse(deepest)) == deepest
    longest = " | ".join(["relu"] * MAX_DEPTH)
    assert str(parse_view(longest)) == longest
    with pytest.raises(ExpressionError, match="deep"):
        parse(f"relu({deepest})")
    with pytest.raises(ExpressionError, match="at most 32 steps"):
        parse_view(longest + " | relu")


@pytest.mark.parametrize("text", ["{}", "squeeze {}", "reshape 1 {}", "relu | {}"])
def test_a_message_shows_no_more_of_a_word_than_fits_into_a_sentence(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse_view(text.format("a" * 5000))
    assert len(caught.value.sentence) < 1000


def test_a_text_has_a_limit() -> None:
    widest = "cat(" + "a, " * (MAX_CHARACTERS // 3 - 3) + "a)"
    assert len(parse(widest).tensors) > 10_000  # type: ignore[union-attr]
    with pytest.raises(ExpressionError, match="characters"):
        parse("a" * (MAX_CHARACTERS + 1))
