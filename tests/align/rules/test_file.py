"""Rules files: what they may say, and where they are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensordiff.align.rules.file import MapRule, RulesFile, read_rules_file
from tensordiff.errors import AlignError
from tests.align.rules.rules_samples import EVERYTHING, READ


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.toml"


def said(path: Path, text: str) -> RulesFile:
    path.write_bytes(text.encode())
    return read_rules_file(path)


def test_a_file_with_everything(path: Path) -> None:
    found = said(path, EVERYTHING)
    assert found == READ
    assert [rule.source for rule in found.rules] == ["rules.toml", "rules.toml"]


def test_an_empty_file_says_nothing(path: Path) -> None:
    assert said(path, "") == RulesFile() == said(path, "\ufeff# only a comment\r\n")


def test_a_map_may_be_for_one_layer(path: Path) -> None:
    assert said(path, "[[map]]\nreference='a.0'\ncandidate='b.0'\nevery=false").maps == (MapRule("a.0", "b.0", False),)


WRONG = [
    ("a = [", 1, 6, "not valid TOML: Invalid value"),
    ("a = '", 1, 6, "not valid TOML: Expected"),
    ("\n[[rule]\n", 2, 7, "not valid TOML"),
    ("[[rules]]", 1, 1, "'rules' is not known; a rules file has .*; did you mean 'rule'"),
    ("\n\nprests = []", 3, 1, "'prests' is not known; .* did you mean 'presets'"),
    ("presets = 'hf'", 1, 1, "presets is 'hf'; it is a list of texts"),
    ("presets = ['max', 'gtp2']", 1, 1, "there is no preset 'gtp2'; .* did you mean 'gpt2'"),
    ("[rule]\nmatch = 'a'", 1, 1, r"write \[\[rule\]\], not \[rule\]"),
    ("x = 1\n[rule.a]", 1, 1, "'x' is not known"),
    ("rule = [1]", 1, 1, "rule 1 is not a table"),
    ("rule = [{match = '('}]", 1, 1, "rule 1 needs 'match' and 'replace'"),
    ("[[rule]]\nmatch = 'a'\nreplace = 'b'\n\n  [[rule]]\nmatch = 'a'", 5, 1, "rule 2 needs 'match' and 'replace'"),
    ("[[rule]]\nreplace = 'b'\n  match = 1", 3, 3, "rule 1 needs 'match' and 'replace', both text"),
    ("[[rule]]\nmatch = 'a'\nreplace = 'b'\nmtach = 'c'", 4, 1, "'mtach' is not known; .* did you mean 'match'"),
    (
        "[[rule]]\nmatch='a'\nreplace='b'\nside = 'left'",
        4,
        1,
        "side is 'left'; it is one of reference, candidate, both",
    ),
    ("[[rule]]\nmatch='a'\nreplace='b'\nside = []", 4, 1, r"side is \[\]; it is one of"),
    ("[[rule]]\nmatch='a'\nreplace='b'\non = 1", 4, 1, "on is 1; it is true or false"),
    ("[[map]]\nreference='a'\ncandidate='b'\nneeds = 'c'", 4, 1, "needs is 'c'; it is a list of texts in quotes"),
    ("[[rule]]\nmatch='a'\nreplace='b'\nmodule_class = '*'", 4, 17, "module_class .* is not a regular expression"),
    ("[[rule]]\nmatch = 'a(b'\nreplace = ''", 2, 11, "match .* is not a regular expression: missing"),
    ("[[rule]]\nmatch = '''\na(b'''\nreplace = ''", 3, 2, "match .* is not a regular expression: missing"),
    ('[[rule]]\nmatch = "\\u0061(b"\nreplace = ""', 2, 9, "match .* is not a regular expression: missing"),
    ("[[rule]]\nmatch = '[[a]'\nreplace = ''", 2, 1, "not a regular expression: Possible nested set"),
    ("[[rule]]\nmatch = 'a{4294967296}'\nreplace = ''", 2, 1, "not a regular expression"),
    (
        "[[rule]]\nmatch = 'a'\nreplace = 'x\\1'",
        3,
        14,
        "replace .* does not go with its match: invalid group reference 1",
    ),
    (
        "[[rule]]\nmatch = 'a'\nreplace = '\\g<x>'",
        3,
        1,
        "replace .* does not go with its match: unknown group name 'x'",
    ),
    ("# [[rule]]\n'[[rule]]' = 1", 1, 1, "'.*rule.*' is not known"),
    ("[[map]]\nreference = 'a'", 1, 1, "map 1 needs 'reference' and 'candidate'"),
    ("[[map]]\nreference = 'a'\ncandidate = 'cut(a)'", 3, 14, "map 1: 'cut' is not a function; did you mean cat"),
    ("[[map]]\nreference = 'cat(a, b'\ncandidate = 'c'", 2, 22, r"map 1: ',' or '\)' is expected"),
    ("[[map]]\nreference = 'a'\ncandidate = 'squeeze 0'", 3, 22, "map 1: "),
    ("[[view]]\nmatch = 'a'", 1, 1, "view 1 says nothing"),
    ("[[view]]\ncandidate = 'last_token'", 1, 1, "view 1 needs 'match', text in quotes"),
    (
        "[[view]]\nmatch = 'a'\nreference = 'squeeze 0 | sqeeze 1'",
        3,
        26,
        "'sqeeze' is not a function; did you mean squeeze",
    ),
    ("[[view]]\nmatch = 'a'\nreference = 3", 3, 1, "reference is 3; it is text in quotes"),
    (
        "[[tolerance]]\nmatch = 'a'",
        1,
        1,
        "tolerance 1 says nothing; give it one of rel_l2, atol, rtol, max_abs, cos_dist, kl_div",
    ),
    ("[[tolerance]]\nmatch = 'a'\nrel_l2 = nan", 3, 1, "rel_l2 is nan; it is a number, 0 or more"),
    ("[[tolerance]]\nmatch = 'a'\natol = -1", 3, 1, "atol is -1; it is a number, 0 or more"),
    ("[[tolerance]]\nmatch = 'a'\natol = true", 3, 1, "atol is True; it is a number"),
    (f"[[tolerance]]\nmatch = 'a'\natol = {10**400}", 3, 1, "it is a number, 0 or more and finite"),
    ("[[tolerance]]\nmatch = 'a'\nmax_abs = inf", 3, 1, "max_abs is inf"),
    ("[[tolerance]]\nmatch = 'a'\nrel_12 = 1", 3, 1, "'rel_12' is not known; .* did you mean 'rel_l2'"),
]


@pytest.mark.parametrize(("text", "line", "column", "sentence"), WRONG, ids=[repr(case[0]) for case in WRONG])
def test_a_file_that_is_wrong_says_where(path: Path, text: str, line: int, column: int, sentence: str) -> None:
    with pytest.raises(AlignError, match=sentence) as caught:
        said(path, text)
    assert str(caught.value).startswith(f"{path}: ")
    assert f"line {line}, column {column}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_looks_like_a_header_in_a_string_or_comment_is_none(path: Path) -> None:
    text = "[[rule]] # [[rule]]\nreplace = '''\n[[rule]]\nmatch = 1'''\nmatch = '''x'''\n\n[[rule]]\nmatch = 'a'"
    with pytest.raises(AlignError, match="line 7, column 1: rule 2 needs"):
        said(path, text)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff\xfe\x00", "cannot be read"),
        (b"x = " + b"[" * 5000, "not valid TOML: lists are nested too deep"),
        (b"x = " + b"9" * 5000, "not valid TOML: Exceeds the limit"),
        (b"# " + b"x" * (1 << 24), "is larger than 16 MB; is it a rules file"),
        (b'"\\u001b[2J" = 1', r"'\\+x1b\[2J' is not known"),
    ],
)
def test_files_that_are_none(path: Path, data: bytes, sentence: str) -> None:
    path.write_bytes(data)
    with pytest.raises(AlignError, match=sentence) as caught:
        read_rules_file(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text", ["presets = '{}'", "[[rule]]\nmatch = ['{}']", "[[rule]]\nmatch = 'a'\non = '{}'", "[[rule]]\nside = '{}'"]
)
def test_what_a_file_says_at_length_is_told_in_short(path: Path, text: str) -> None:
    path.write_text(text.format("a" * 10_000))
    with pytest.raises(AlignError) as caught:
        read_rules_file(path)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "told"), [("", "cannot be read"), ("not there.toml", "there is no such rules file; check the path$")]
)
def test_no_file(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(AlignError, match=told):
        read_rules_file(tmp_path / name)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cut=st.integers(0, len(EVERYTHING)),
    size=st.integers(0, 6),
    put=st.text("[]'\"=#\\\n(){}ab.1-,é\x00", max_size=6),
)
def test_a_damaged_file_is_read_or_refused_with_a_sentence(path: Path, cut: int, size: int, put: str) -> None:
    try:
        said(path, EVERYTHING[:cut] + put + EVERYTHING[cut + size :])
    except AlignError as error:
        assert str(error).startswith(f"{path}: ")
        assert str(error).isprintable()
