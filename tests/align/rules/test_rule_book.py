"""Editing rules: every change gives a new book, can be undone, and can be written to a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensordiff.align import AlignmentPlan, align
from tensordiff.align.index import Index
from tensordiff.align.presets import PRESETS as ALL_PRESETS
from tensordiff.align.presets import preset
from tensordiff.align.rule_usage import rule_usage
from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.rule_book import Line, RuleBook, describe, kind_of, rebased
from tensordiff.align.rules.tables import MapRule, ToleranceRule, ViewRule
from tensordiff.errors import AlignError
from tensordiff.tui.rules.preview import changes
from tests.making import held, numbers

OWN = Rule("both", "^a$", "b", source="mine.toml")
OTHER = Rule("candidate", "^c$", "d")
PRESETS = (Rule("both", "^model\\.", "", source="hf"), Rule("candidate", "_shards\\.0", "", source="max"))
MAP = MapRule("x", "y")
VIEW = ViewRule("lm_head", reference="last_token")


def book(*rules: Rule) -> RuleBook:
    said = RulesFile(rules=rules)
    return RuleBook(said, PRESETS, said)


def line_of(it: RuleBook, value: object) -> Line:
    return next(line for line in it.lines if line.value == value)


def test_lines_are_maps_then_rules_then_presets_then_views() -> None:
    found = book(OWN).added(MAP).added(VIEW).lines
    assert [line.value for line in found] == [MAP, OWN, *PRESETS, VIEW]
    assert [line.is_own for line in found] == [True, True, False, False, True]
    assert [line.kind for line in found] == ["map", "rule", "rule", "rule", "view"]


def test_added_comes_last_of_its_kind_and_before_presets() -> None:
    assert [line.value for line in book(OWN).added(OTHER).lines][:2] == [OWN, OTHER]


def test_what_is_there_already_is_not_added_again() -> None:
    with pytest.raises(AlignError, match="is there already"):
        book(OWN).added(Rule("both", "^a$", "b"))
    with pytest.raises(AlignError, match="nothing new"):
        book().added(MAP).with_maps([MAP])


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Rule("both", "(", ""), "not a regular expression"),
        (Rule("both", "a", r"\1"), "does not go with its match"),
        (MapRule("cat(a", "b"), "is expected"),
        (MapRule("a", ""), "a tensor is expected"),
        (ViewRule("a"), "one side or both"),
        (ViewRule("(", reference="squeeze 0"), "not a regular expression"),
        (ViewRule("a", candidate="cut 0"), "is not a function"),
    ],
)
def test_what_could_not_be_applied_is_refused(value: Rule | MapRule | ViewRule, why: str) -> None:
    with pytest.raises(AlignError, match=why):
        book().added(value)


def test_a_preset_is_switched_off_and_on_in_the_persons_own_words() -> None:
    off = book(OWN).toggled(Line(PRESETS[0], 0, is_own=False))
    assert [line.value.on for line in off.lines] == [True, False, True]
    assert off.rules.rules == (OWN, Rule("both", "^model\\.", "", on=False))
    on = off.toggled(off.lines[1])
    assert on.rules == RulesFile(rules=(OWN,))


def test_what_is_switched_off_is_off_when_aligning() -> None:
    reference, candidate = held({"model.layers.0.mlp": numbers(4)}), held({"layers.0.mlp": numbers(4)})
    plan = AlignmentPlan.for_dumps(reference, candidate)
    presets = plan.rules.rules
    at = next(k for k, rule in enumerate(presets) if "model" in rule.match and rule.is_for("reference"))
    start = RuleBook(RulesFile(), presets)
    off = start.toggled(start.lines[at])
    assert len(align(reference, candidate, plan).pairs) == 1
    assert align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate, off.rules)).pairs == ()


def test_a_preset_is_overridden_not_edited_nor_deleted_nor_moved() -> None:
    preset = Line(PRESETS[0], 0, is_own=False)
    made = book().changed(preset, OWN)
    assert [(line.value.on, line.is_own) for line in made.lines] == [(True, True), (False, False), (True, False)]
    assert made.undone().rules == RulesFile()
    for change in (RuleBook.deleted, lambda it, line: it.moved(line, 1)):
        with pytest.raises(AlignError, match="preset hf cannot be"):
            change(book(), preset)


def test_move_stops_at_either_end_and_passes_what_is_not_shown() -> None:
    it = book(OWN).toggled(Line(PRESETS[0], 0, is_own=False)).added(OTHER)
    assert it.moved(it.lines[0], -1) is it
    moved = it.moved(it.lines[0], 1)
    assert [line.value for line in moved.lines][:2] == [OTHER, OWN]
    assert moved.moved(line_of(moved, OWN), 1) is moved


@pytest.mark.parametrize("value", [OTHER, MAP, VIEW])
def test_every_kind_can_be_edited_switched_deleted_and_brought_back(value: Rule | MapRule | ViewRule) -> None:
    it = book(OWN).added(value)
    off = it.toggled(line_of(it, value))
    assert not off.lines[[line.value for line in it.lines].index(value)].value.on
    gone = off.deleted(next(line for line in off.lines if line.kind == kind_of(value) and not line.value.on))
    assert gone.rules == book(OWN).rules
    assert gone.undone().rules == off.rules
    assert gone.undone().undone().rules == it.rules


def test_undo_and_redo_say_what_they_did_and_end() -> None:
    it = book().added(OWN)
    assert it.past[-1].description == "added rule ^a$ → b"
    back = it.undone()
    assert back.rules == RulesFile() and back.redone().rules == it.rules
    assert back.added(OTHER).future == ()
    with pytest.raises(AlignError, match="nothing to undo"):
        back.undone()
    with pytest.raises(AlignError, match="nothing to redo"):
        it.redone()


WHAT = st.sampled_from(["add", "toggle", "delete", "move", "change"])
CHANGES = st.lists(st.tuples(WHAT, st.integers(0, 9)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(CHANGES)
def test_any_row_of_changes_can_be_undone_and_done_again(steps: list[tuple[str, int]]) -> None:
    start = it = book(OWN, OTHER)
    for what, k in steps:
        line = it.lines[k % len(it.lines)]
        try:
            match what:
                case "add":
                    it = it.added(Rule("both", f"n{k}", "m"))
                case "toggle":
                    it = it.toggled(line)
                case "delete":
                    it = it.deleted(line)
                case "move":
                    it = it.moved(line, 1 if k % 2 else -1)
                case "change":
                    it = it.changed(line, Rule("both", f"c{k}", "m"))
        except AlignError:
            continue
    end, count = it.rules, len(it.past)
    for _ in range(count):
        it = it.undone()
    assert it.rules == start.rules
    for _ in range(count):
        it = it.redone()
    assert it.rules == end


def test_written_keeps_comments_and_is_written_then(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text("# mine\n[[rule]]  # why\nmatch = '^a$'\nreplace = 'b'\n")
    it = RuleBook(read_rules_file(path), PRESETS, read_rules_file(path))
    assert it.is_saved
    it = it.added(MAP).toggled(Line(PRESETS[1], 1, is_own=False))
    assert not it.is_saved
    it = it.write(path)
    assert it.is_saved and path.read_text().startswith("# mine\n[[rule]]  # why\n")
    assert read_rules_file(path) == it.rules
    assert [line.value.on for line in RuleBook(read_rules_file(path), PRESETS).lines] == [True, True, True, False]


@pytest.mark.parametrize("change", ["switched off", "overridden"])
def test_every_rule_that_comes_with_tensordiff_can_be_changed_and_written(tmp_path: Path, change: str) -> None:
    path, presets = tmp_path / "rules.toml", tuple(rule for name in ALL_PRESETS for rule in preset(name).rules)
    it = RuleBook(RulesFile(), presets)
    for k, rule in enumerate(presets):
        line = Line(rule, k, is_own=False)
        made = it.toggled(line) if change == "switched off" else it.changed(line, OWN)
        path.unlink(missing_ok=True)
        made.write(path)
        assert read_rules_file(path).rules == made.rules.rules
        assert not any(own.is_ours for own in made.rules.rules)


def test_an_edit_over_a_file_that_changed_keeps_both() -> None:
    base = RulesFile(rules=(OWN, OTHER), tolerances=(ToleranceRule("x", rel_l2=1.0),))
    said = RulesFile(rules=(OTHER,), maps=(MAP,), tolerances=base.tolerances)
    new = Rule("both", "new", "")
    now = RulesFile(rules=(new, OWN, OTHER), views=(VIEW,))
    assert rebased(said, base, base) is said
    assert rebased(said, base, now) == RulesFile(rules=(new, OTHER), maps=(MAP,), views=(VIEW,))


def test_told_on_one_line_whatever_is_in_it() -> None:
    for value in (Rule("both", "a\nb", ""), MapRule('"\x1b[31m"', "b"), ViewRule("a\nb", "squeeze 0")):
        assert describe(value).isprintable()


def test_changes_between_alignments() -> None:
    a, b, c = (numbers(4, seed=k) for k in range(3))
    reference, candidate = held({"a": a, "b": b, "c": c}), held({"a": a, "x": b, "c": c})
    before = align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate))
    said = RulesFile(maps=(MapRule("b", "x"), MapRule("c", "a")))
    after = align(reference, candidate, AlignmentPlan.for_dumps(reference, candidate, said))
    found = changes(before, after)
    assert {(p.reference.name, p.candidate.name) for p in found.gained} == {("b", "x"), ("c", "a")}
    assert {(p.reference.name, p.candidate.name) for p in found.lost} == {("a", "a"), ("c", "c")}
    assert (found.pairs, found.reference_orphans, found.candidate_orphans) == (2, 1, 1)
    assert not changes(before, before).any


def test_hits_of_rules_maps_and_views() -> None:
    layers = {f"m.layers.{k}.{name}": numbers(1, 3, 4, seed=k) for k in range(2) for name in ("up", "down")}
    other = {f"layers.{k}.{name}": numbers(3, 4, seed=k) for k in range(2) for name in ("up", "lower")}
    reference, candidate = held(layers), held(other)
    said = RulesFile(
        rules=(Rule("reference", "^m\\.", ""), Rule("both", "never", "")),
        maps=(MapRule("layers.0.down", "layers.0.lower"), MapRule("layers.1.down", "layers.1.lower", on=False)),
        views=(ViewRule("up$", reference="squeeze 0"), ViewRule("layers.0.up", reference="last_token")),
    )
    plan = AlignmentPlan.for_dumps(reference, candidate, said)
    sides = Index(reference, plan.rules, "reference"), Index(candidate, plan.rules, "candidate")
    found = rule_usage(said, *sides, align(reference, candidate, plan))
    assert found.rules[:2] == (4, 0)
    assert found.maps == (2, 0)
    assert found.views == (2, 0)


def test_what_was_learned_is_kept_as_one_change_and_once() -> None:
    kept = RulesFile(rules=(Rule("candidate", "^a", "b"),), maps=(MapRule("x", "y"), MapRule("c", "d")))
    book = RuleBook(RulesFile(maps=(MapRule("x", "y"),)))
    after = book.with_learned(kept)
    assert after.rules.rules == kept.rules and after.rules.maps == (MapRule("x", "y"), MapRule("c", "d"))
    assert [edit.description for edit in after.past] == ["kept 1 rule and 1 map that were learned"]
    assert after.undone().rules == book.rules
    with pytest.raises(AlignError, match="what was learned is there already"):
        after.with_learned(kept)
