"""Shapes before any data: what fits, what does not and where the caret stands, the trace."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.align.expression import (
    HERE,
    Call,
    Expression,
    ExpressionError,
    Name,
    parse,
    parse_view,
    plan,
    steps,
    view_of,
)
from tensordiff.dump.dtypes import DTYPES
from tensordiff.dump.model import Spec
from tests.align.expression.strategies import ENTRIES, expressions


def spec(*shape: int, dtype: str = "float32") -> Spec:
    return Spec(shape, DTYPES[dtype])


SPECS = {
    "q": spec(9, 64),
    "k": spec(9, 32),
    "v": spec(9, 32),
    "logits": spec(1, 9, 320),
    "bf16": spec(9, 64, dtype="bfloat16"),
    "ids": spec(1, 9, dtype="int64"),
    "freqs": spec(9, 8, dtype="complex64"),
    "one": spec(),
    "none": spec(0, 4),
}

any_specs = st.builds(
    Spec,
    st.lists(st.sampled_from([0, 1, 2, 3, 4, 6, 1 << 40]), max_size=4).map(tuple),
    st.sampled_from([*DTYPES.values(), np.dtype(">f4"), np.dtype(">f8")]),
)


@settings(deadline=None, max_examples=400)
@given(expressions(st.sampled_from(ENTRIES)), st.fixed_dictionaries(dict.fromkeys(ENTRIES, any_specs)))
def test_any_expression_on_any_specs_is_planned_or_refused(tree: Expression, specs: dict[str, Spec]) -> None:
    text = str(tree)
    try:
        after = plan(parse(text), specs)
    except ExpressionError as error:
        assert error.span is not None
        assert error.span.text == text
    else:
        trace = steps(parse(text), specs)
        assert (trace[-1].after if trace else specs[text]) == after


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("cat(q, k, v)", (9, 128)),
        ("cat(k, v, axis=0)", (18, 32)),
        ("last_token(logits)", (1, 320)),
        ("last_token(q)", (1, 64)),
        ("token(logits, 0)", (1, 320)),
        ("heads(q, 4)", (9, 4, 16)),
        ("swap_heads(heads(q, 4))", (4, 9, 16)),
        ("squeeze(logits, 0)", (9, 320)),
        ("unsqueeze(one, 0)", (1,)),
        ("reshape(q, 9, -1, 16)", (9, 4, 16)),
        ("reshape(none, 4, -1, 2)", (4, 0, 2)),
        ("flatten(logits, 0, 1)", (9, 320)),
        ("slice(q, -1, -16)", (9, 16)),
        ("slice(none, 0)", (0, 4)),
        ("split(q, 3, 4)", (9, 16)),
        ("permute(logits, 2, 0, -2)", (320, 1, 9)),
        ("sum(logits, reshape(slice(logits, 1, 0, 1), 320))", (1, 9, 320)),
    ],
)
def test_shapes(text: str, shape: tuple[int, ...]) -> None:
    assert plan(parse(text), SPECS) == spec(*shape)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("sum(bf16, q)", "float32"),
        ("silu(bf16)", "float32"),
        ("relu(cast(q, float64))", "float64"),
        ("mul(cast(bf16, float16), cast(q, float64))", "float64"),
        ("sub(freqs, cast(freqs, complex128))", "complex128"),
        ("scale(cast(ids, float16), 2)", "float32"),
        ("transpose(bf16, 0, 1)", "bfloat16"),
        ("cast(q, float8_e4m3fn)", "float8_e4m3fn"),
    ],
)
def test_dtypes(text: str, dtype: str) -> None:
    assert plan(parse(text), SPECS).dtype == DTYPES[dtype]


@pytest.mark.parametrize(
    ("text", "column", "part"),
    [
        ("cat(q, nothing)", 8, "no entry 'nothing'"),
        ("cat(q, k, axis=0)", 8, "cat: [9, 32] and [9, 64] differ elsewhere than along axis 0"),
        ("cat(q, logits)", 8, "cat: [1, 9, 320] and [9, 64]"),
        ("cat(q, relu(logits))", 8, "cat: [1, 9, 320] and [9, 64]"),
        ("cat(q, bf16)", 8, "cat: bfloat16 and float32 cannot be joined"),
        ("cat(q, k, axis=2)", 16, "cat: axis 2 is not one of the 2 dimensions of [9, 64]"),
        ("cat(one, one)", 5, "cat: at least 1 dimensions are needed, and [] has 0"),
        ("sum(q, k)", 1, "sum: [9, 64], [9, 32] are not of one shape"),
        ("sum(q, ids)", 8, "sum: it computes with floats, and this is int64"),
        ("silu(freqs)", 6, "silu: a tensor of complex64 has no silu"),
        ("scale(q, 1e300)", 10, "scale: 1e+300 does not fit float32"),
        ("scale(q, 1e-300)", 10, "scale: 1e-300 does not fit float32"),
        ("cast(q, int32)", 9, "cast: float32 to int32 would drop fractions"),
        ("cast(freqs, float32)", 13, "cast: complex64 has an imaginary part"),
        ("squeeze(logits, 1)", 17, "squeeze: axis 1 of [1, 9, 320] has size 9, not 1"),
        ("squeeze(relu(q), 7)", 18, "squeeze: axis 7 is not one of the 2 dimensions of [9, 64]"),
        ("unsqueeze(q, 3)", 14, "unsqueeze: axis 3"),
        ("reshape(q, 9, 63)", 1, "reshape: the 576 elements of [9, 64] do not fill [9, 63]"),
        ("reshape(q, 5, -1)", 1, "reshape: the 576 elements of [9, 64] do not fill [5, -1]"),
        ("reshape(none, 0, -1)", 1, "reshape: the 0 elements of [0, 4] do not fill [0, -1]"),
        ("reshape(q, -1, -1)", 16, "reshape: a size is a whole number, or -1 once"),
        ("reshape(q, 999999999999999999)", 1, "do not fill"),
        ("reshape(none, 999999999999999999, 999999999999999999, 0)", 1, "larger than any tensor can be"),
        ("flatten(logits, 2, 1)", 17, "flatten: axis 2 of [1, 9, 320] stands after axis 1"),
        ("transpose(q, 0, 2)", 17, "transpose: axis 2"),
        ("permute(logits, 0, 0, 1)", 1, "permute: [0, 0, 1] does not name each of the 3 axes of [1, 9, 320] once"),
        ("slice(q, 1, 65)", 13, "slice: 65 is beyond an axis of size 64"),
        ("slice(q, 1, 3, 3)", 1, "slice: nothing lies from 3 up to 3 along axis 1 of [9, 64]"),
        ("split(q, 0, 5)", 13, "split: axis 1 of [9, 64] cannot be cut into 5 equal parts"),
        ("split(q, 4, 4)", 10, "split: 4 parts are counted from 0 to 3; there is no part 4"),
        ("last_token(one)", 12, "last_token: at least 2 dimensions are needed, and [] has 0"),
        ("last_token(none)", 12, "last_token: [0, 4] has no tokens"),
        ("token(q, -10)", 10, "token: [9, 64] has 9 tokens; there is no token -10"),
        ("heads(q, 5)", 10, "heads: the last axis of [9, 64] cannot be cut into 5 equal heads"),
        ("heads(q, 0)", 10, "cut into 0"),
        ("swap_heads(q)", 12, "swap_heads: at least 3 dimensions"),
        ("interleave(unsqueeze(q, 2))", 12, "interleave: the last axis of [9, 64, 1] has no two equal halves"),
    ],
)
def test_what_does_not_fit_is_named_and_pointed_at(text: str, column: int, part: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        plan(parse(text), SPECS)
    assert part in caught.value.sentence
    assert caught.value.column == column


def test_a_misfit_in_a_view_points_into_the_view() -> None:
    applied = view_of(parse_view("squeeze 0 | squeeze 0"), parse("cat(q, k)"))
    with pytest.raises(ExpressionError) as caught:
        plan(applied, SPECS)
    assert "squeeze 0 | squeeze 0" in str(caught.value)
    assert caught.value.column == 9


def test_a_tree_that_was_never_text_fails_with_a_sentence() -> None:
    with pytest.raises(ExpressionError) as caught:
        plan(Call("squeeze", (Name("q"),), (0,)), SPECS)
    assert str(caught.value) == "squeeze: axis 0 of [9, 64] has size 9, not 1"
    assert caught.value.column is None


def test_a_view_is_planned_on_the_entry_at_hand() -> None:
    assert plan(parse_view("last_token"), {HERE.text: spec(1, 9, 320)}) == spec(1, 320)


def test_steps_are_shown_with_shapes_before_and_after() -> None:
    fused = view_of(parse_view("unsqueeze 0"), parse("cat(q, k, v)"))
    assert [str(step) for step in steps(fused, SPECS)] == [
        "cat of [9, 64], [9, 32], [9, 32] -> [9, 128]",
        "unsqueeze 0 of [9, 128] -> [1, 9, 128]",
    ]
    assert [str(step) for step in steps(parse("sum(bf16, bf16)"), SPECS)] == [
        "sum of bfloat16 [9, 64], bfloat16 [9, 64] -> float32 [9, 64]"
    ]
    assert steps(parse("q"), SPECS) == ()


def test_dimensions_have_a_limit() -> None:
    deep = view_of(parse_view(" | ".join(["unsqueeze 0"] * 31)), parse("q"))
    with pytest.raises(ExpressionError, match="33 dimensions"):
        plan(deep, SPECS)


def test_what_would_be_made_anew_has_a_limit_and_what_is_viewed_has_none() -> None:
    huge = {"x": spec(1 << 30, 1 << 6)}
    assert plan(parse("transpose(x, 0, 1)"), huge) == spec(1 << 6, 1 << 30)
    with pytest.raises(ExpressionError, match="would take 512 GiB"):
        plan(parse("cat(x, x)"), huge)
    with pytest.raises(ExpressionError, match="not of one shape"):
        plan(parse("mul(x, transpose(x, 0, 1))"), {"x": spec(1, 1 << 20)})
