"""Writing rules files: what is written reads back, and a person's hand stays."""

from __future__ import annotations

import os
import stat
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensordiff.align.rules.file import (
    MapRule,
    RulesFile,
    ToleranceRule,
    ViewRule,
    add_to_file,
    read_rules_file,
    write_rules_file,
)
from tensordiff.align.rules.rule import Rule
from tensordiff.errors import AlignError, TensordiffError, WriteError
from tests.align.rules.rules_samples import EVERYTHING, QKV, READ

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
REGEXES = TEXTS.map(lambda text: "".join(c if c.isalnum() else f"\\{c}" if c.isascii() else "." for c in text)) | (
    st.sampled_from([r"^model\.", r"(\d+)'s \"x\"", "a|b", "", r"\.experts\.", "[\"']", "'''", '"""', "\\\\", "a\nb"])
)
EXPRESSIONS = st.sampled_from(
    ["a", "layers.{i}.mlp", "cat(a, b)", 'sum("it\'s", "b\\\\c")', "lm_head(2)-output", '"\\"\n\t"', '"\x00é\u2028"']
)
VIEWS = st.none() | st.sampled_from(["last_token", "squeeze 0 | flatten 0 1", "cast float32"])
COSINES = st.none() | st.floats(0, 2, exclude_max=True)
LIMITS = st.none() | st.floats(0, 1e38) | st.integers(0, 10**6).map(float)
RULES = st.builds(
    Rule,
    side=st.sampled_from(["reference", "candidate", "both"]),
    match=REGEXES,
    replace=TEXTS.map(lambda text: text.replace("\\", "")),
    on=st.booleans(),
    module_class=st.none() | REGEXES,
)
MAPS = st.builds(MapRule, EXPRESSIONS, EXPRESSIONS, st.booleans())
FILES = st.builds(
    RulesFile,
    rules=st.lists(RULES, max_size=4).map(tuple),
    maps=st.lists(MAPS, max_size=4).map(tuple),
    views=st.lists(
        st.builds(ViewRule, REGEXES, VIEWS, VIEWS).filter(lambda view: bool(view.reference or view.candidate)),
        max_size=3,
    ).map(tuple),
    tolerances=st.lists(
        st.builds(ToleranceRule, REGEXES, *[LIMITS] * 4, COSINES, LIMITS).filter(lambda t: t != ToleranceRule(t.match)),
        max_size=3,
    ).map(tuple),
    presets=st.none() | st.lists(st.sampled_from(["hf", "max", "gpt2"]), max_size=3).map(tuple),
)
per_example = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def append_maps(path: Path, maps: list[MapRule]) -> None:
    add_to_file(path, RulesFile(maps=tuple(maps)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rules.toml"


@per_example
@given(FILES)
def test_what_is_written_reads_back_the_same(path: Path, wanted: RulesFile) -> None:
    path.unlink(missing_ok=True)
    write_rules_file(path, wanted)
    assert read_rules_file(path) == wanted


@per_example
@given(FILES)
def test_any_file_can_be_made_to_say_anything_and_keeps_what_is_said_between_tables(
    path: Path, wanted: RulesFile
) -> None:
    path.write_text(EVERYTHING)
    write_rules_file(path, wanted)
    assert read_rules_file(path) == wanted
    assert {"# Rules of a port", "# a loose paragraph"} <= set(path.read_text().splitlines())


@per_example
@given(st.permutations([*READ.rules, Rule("both", "x", "y"), Rule("both", "z", "")]), st.integers(0, 4))
def test_a_rule_that_moves_takes_its_comments_along(path: Path, rules: list[Rule], count: int) -> None:
    path.write_text(EVERYTHING)
    write_rules_file(path, replace(READ, rules=tuple(rules[:count])))
    assert read_rules_file(path).rules == tuple(rules[:count])
    assert ("# tried in order" in path.read_text()) >= (READ.rules[0] in rules[:count])


def test_writing_what_is_there_changes_not_a_byte(path: Path) -> None:
    for text in (EVERYTHING, EVERYTHING.replace("\n", "\r\n"), EVERYTHING.rstrip(), "", "rule = []", "\n\n# x"):
        path.write_bytes(text.encode())
        write_rules_file(path, read_rules_file(path))
        assert path.read_bytes() == text.encode()


def test_a_rule_turned_off_is_one_line_more(path: Path) -> None:
    path.write_text(EVERYTHING)
    write_rules_file(path, replace(READ, rules=(replace(READ.rules[0], on=False), READ.rules[1])))
    assert path.read_text() == EVERYTHING.replace("'layers.'\n", "'layers.'\non = false\n")
    write_rules_file(path, READ)
    assert path.read_text() == EVERYTHING


def test_a_value_that_changes_keeps_its_comment(path: Path) -> None:
    path.write_text(EVERYTHING)
    write_rules_file(path, replace(READ, tolerances=(ToleranceRule(r"\.experts\.", rel_l2=0.5, max_abs=1.0),)))
    assert path.read_text() == EVERYTHING.replace("3e-2", "0.5")


def test_what_goes_without_saying_stays_where_a_person_said_it(path: Path) -> None:
    text = "[[rule]]\nside = 'both'\nmatch = 'a'\nreplace = 'b'\non = true\n"
    path.write_text(text)
    write_rules_file(path, RulesFile(rules=(Rule("both", "a", "c"),)))
    assert path.read_text() == text.replace("'b'", '"c"')


def test_a_table_that_goes_takes_the_comment_above_it_along_and_no_other(path: Path) -> None:
    path.write_text(EVERYTHING)
    write_rules_file(path, replace(READ, maps=(), presets=None))
    text = path.read_text()
    assert "# what vLLM fuses" not in text
    assert "presets" not in text
    assert "\n\n\n" not in text
    assert all(comment in text for comment in ("# Rules of a port", "# tried in order", "# a loose paragraph"))


def test_a_new_file_says_what_it_is_and_quotes_expressions_as_they_are(path: Path) -> None:
    write_rules_file(path, RulesFile(rules=(Rule("candidate", r"^tower\.(\d+)", r"layers.\1"),)))
    assert path.read_text().startswith("# How tensordiff pairs")
    assert path.read_text().endswith(
        "\n\n[[rule]]\nside = \"candidate\"\nmatch = '^tower\\.(\\d+)'\nreplace = 'layers.\\1'\n"
    )


def test_maps_are_appended_once(path: Path) -> None:
    append_maps(path, [QKV, QKV])
    first = path.read_text()
    append_maps(path, [QKV])
    assert path.read_text() == first
    other = MapRule("a", "b", every=False)
    append_maps(path, [other, QKV])
    assert path.read_text() == first + '\n[[map]]\nreference = "a"\ncandidate = "b"\nevery = false\n'
    assert read_rules_file(path).maps == (QKV, other)


def test_maps_go_after_the_maps_that_are_there(path: Path) -> None:
    path.write_text(EVERYTHING)
    append_maps(path, [MapRule("a", "b")])
    before, after = EVERYTHING.split("\n[[view]]")
    assert path.read_text() == f'{before}\n[[map]]\nreference = "a"\ncandidate = "b"\n\n[[view]]{after}'


def test_line_ends_are_those_of_the_file(path: Path) -> None:
    path.write_bytes(EVERYTHING.replace("\n", "\r\n").encode())
    append_maps(path, [MapRule("a", "b")])
    data = path.read_bytes()
    assert data.count(b"\n") == data.count(b"\r\n") > 30
    assert read_rules_file(path).maps == (QKV, MapRule("a", "b"))


def test_a_broken_file_is_not_written_over(path: Path) -> None:
    path.write_text("[[rule]\n")
    with pytest.raises(AlignError, match="not valid TOML"):
        append_maps(path, [QKV])
    assert path.read_text() == "[[rule]\n"


def test_tables_written_in_one_line_are_read_and_left_alone(path: Path) -> None:
    text = "map = [{reference = 'a', candidate = 'b'}]\n"
    path.write_text(text)
    assert read_rules_file(path).maps == (MapRule("a", "b"),)
    with pytest.raises(AlignError, match=r"a map is not written as \[\[map\]\]; write it that way"):
        append_maps(path, [QKV])
    assert path.read_text() == text


def test_a_name_that_no_file_can_hold(path: Path) -> None:
    with pytest.raises(TensordiffError):
        append_maps(path, [MapRule('"\udcff"', "b")])
    assert list(path.parent.iterdir()) == []


def test_what_would_not_read_back_is_not_written(path: Path) -> None:
    path.write_text(EVERYTHING)
    with pytest.raises(AlignError, match=r"map 2: .* is not a function"):
        append_maps(path, [MapRule("cut(a, b)", "c")])
    assert path.read_text() == EVERYTHING


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="cannot be written"):
        append_maps(tmp_path / "none" / "rules.toml", [QKV])


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(EVERYTHING)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="no space left on device"):
        append_maps(path, [MapRule("a", "b")])
    assert path.read_text() == EVERYTHING
    assert list(path.parent.iterdir()) == [path]


def test_links_and_permissions_stay(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real.toml"
    real.write_text(EVERYTHING)
    real.chmod(0o640)
    path.symlink_to(real)
    append_maps(path, [MapRule("a", "b")])
    assert path.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert len(tomllib.loads(real.read_text())["map"]) == 2


def test_a_comment_at_the_top_is_about_the_file(path: Path) -> None:
    path.write_text("# Rules of a port\n[[map]]\nreference = 'a'\ncandidate = 'b'\n")
    write_rules_file(path, RulesFile())
    assert path.read_text() == "# Rules of a port\n"
