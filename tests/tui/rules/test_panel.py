"""The rules panel: rules with what they do, edits that realign, undo, writing, and what goes wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.align.rules.rule import Rule
from tensordiff.align.rules.rule_book import Edit, describe
from tensordiff.errors import AlignError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.rules.panel import RulesPanel
from tests.tui.app_host import CASES
from tests.tui.rules.panel_host import CANDIDATE, REFERENCE, Host, drawn, opened, renamed, said, with_other_mlp
from tests.tui.waiting import settled, until

SIZE = (120, 40)


def plain() -> Session:
    return Session.open(Request(REFERENCE, CANDIDATE, learn=False))


def changes(app: Host) -> tuple[Edit, ...]:
    return app.panel.book.past


async def test_a_session_that_comes_before_the_panel_is_composed_is_shown_then() -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        panel = RulesPanel(plain(), app.panel.book)
        panel.show(app.session, app.panel.book)
        await app.mount(panel)
        await settled(app, pilot)
        assert panel.session is app.session and len(panel.rules.items) == len(app.panel.rules.items)


async def test_shows_rules_in_order_with_what_they_do_and_whose_they_are() -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        lines = drawn(app.panel.rules).splitlines()
        assert len(app.panel.rules.items) == len(app.session.plan.rules.rules)
        stripped = next(line for line in lines if "(?:model|module)" in line)
        assert stripped.startswith("✓ both") and stripped.split()[-2:] == ["hf", "128"]
        assert said(app, "#counts") == "43 paired · 32 + 17 orphans"
        assert app.aligned == []


async def test_a_rule_of_a_preset_is_switched_off_and_on_again() -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        items = app.panel.rules.items
        app.panel.rules.move(next(k for k, one in enumerate(items) if "(?:model|module)" in describe(one.value)))
        await pilot.press("space")
        await settled(app, pilot)
        assert len(app.aligned) == 1 and len(app.aligned[0].alignment.pairs) < 43
        assert "○ both" in drawn(app.panel.rules) and "not written" in said(app, "#counts")
        await pilot.press("space")
        await settled(app, pilot)
        assert len(app.aligned[1].alignment.pairs) == 43 and app.panel.book.rules == RulesFile()
        await pilot.press("d")
        assert app.panel.book.rules == RulesFile()


async def test_add_with_a_preview_then_undo_and_redo(tmp_path: Path) -> None:
    app = Host(opened(tmp_path, with_other_mlp))
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        before = len(app.panel.session.alignment.pairs)
        await pilot.press("a", *r"second$", "tab", *"down_proj")
        await until(pilot, lambda: "+4" in said(app, "#changes"))
        shown = said(app, "#changes")
        assert shown.startswith("+4 −0 pairs; then ") and "~ layers.0.mlp.second → layers.0.mlp.down_proj" in shown
        assert "+ model.model.layers.1.mlp.down_proj-output = model.layers.layers.1.mlp.second-output" in shown
        assert app.aligned == []
        await pilot.press("enter")
        await settled(app, pilot)
        assert app.panel.book.rules.rules == (Rule("both", "second$", "down_proj"),)
        assert len(app.aligned[-1].alignment.pairs) == before + 4
        assert app.panel.rules.current is not None and app.panel.rules.current.is_own
        await pilot.press("u")
        await settled(app, pilot)
        assert len(app.aligned[-1].alignment.pairs) == before
        await pilot.press("U")
        await settled(app, pilot)
        assert len(app.aligned[-1].alignment.pairs) == before + 4


async def test_edit_delete_and_move_ones_own(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("# mine\n[[rule]]\nmatch = 'aa'\nreplace = 'a'\n\n[[rule]]\nmatch = 'bb'\nreplace = 'b'\n")
    app = Host(Session.open(Request(REFERENCE, CANDIDATE, rules=rules, learn=False)))
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        await pilot.press("J")
        assert [rule.match for rule in app.panel.book.rules.rules] == ["bb", "aa"] and app.panel.rules.cursor == 1
        await pilot.press("J")
        assert app.panel.rules.cursor == 1
        await pilot.press("K", "enter")
        await pilot.press("home", *"x", "ctrl+s")
        await settled(app, pilot)
        assert [rule.match for rule in app.panel.book.rules.rules] == ["xaa", "bb"]
        await pilot.press("j", "d")
        await settled(app, pilot)
        assert [rule.match for rule in app.panel.book.rules.rules] == ["xaa"]
        await pilot.press("w")
        await settled(app, pilot)
        assert app.written == [rules] and rules.read_text().startswith("# mine\n")
        assert read_rules_file(rules).rules == app.panel.book.rules.rules
        assert "not written" not in said(app, "#counts")


async def test_a_preset_is_overridden_by_an_edited_copy() -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        await pilot.press("enter", "end", *"x", "enter")
        await settled(app, pilot)
        first, *_ = app.panel.book.lines
        assert first.is_own and isinstance(first.value, Rule) and first.value.match.endswith("x")
        assert [line.value.on for line in app.panel.book.lines[:2]] == [True, False]


@pytest.mark.parametrize("part", ["rules", "orphans"])
async def test_written_to_a_file_that_is_asked_for(part: str, tmp_path: Path) -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.change(lambda book: book.added(Rule("both", "aa", "a")))
        await settled(app, pilot)
        getattr(app.panel, part).focus()
        await pilot.press("w")
        await pilot.pause()
        field = app.screen.query_one("Input")
        field.value = str(tmp_path / "new.toml")  # type: ignore[attr-defined]
        await pilot.press("enter")
        await settled(app, pilot)
        assert read_rules_file(tmp_path / "new.toml").rules == (Rule("both", "aa", "a"),)
        assert app.panel.session.request.rules == tmp_path / "new.toml"


async def test_a_folder_that_is_none_is_a_notification(tmp_path: Path) -> None:
    app = Host(replace(plain(), request=Request(REFERENCE, CANDIDATE, rules=tmp_path / "none" / "rules.toml")))
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.change(lambda book: book.added(Rule("both", "aa", "a")))
        app.panel.rules.focus()
        await pilot.press("w")
        await until(pilot, lambda: list(app._notifications))
        assert "cannot be written" in next(iter(app._notifications)).message
        assert not app.panel.book.is_saved


async def test_a_thread_that_fails_is_a_notification_not_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Host(plain())

    def broken(*_: object) -> Session:
        raise AlignError("these dumps [/cannot] be aligned")

    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        monkeypatch.setattr(Session, "realigned", broken)
        app.panel.change(lambda book: book.added(Rule("both", "aa", "a")))
        await until(pilot, lambda: app._notifications)
        assert [one.message for one in app._notifications] == ["these dumps [/cannot] be aligned"]
        assert app.aligned == []


async def test_a_session_changed_elsewhere_keeps_edits_that_it_says_too() -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.change(lambda book: book.added(Rule("both", "aa", "a")))
        await settled(app, pilot)
        app.owner.open(app.owner.request)
        await settled(app, pilot)
        assert len(changes(app)) == 1 and len(app.aligned) == 2
        app.owner.keeper.note(rules=None)
        app.owner.open(app.owner.request)
        await settled(app, pilot)
        assert changes(app) == () and app.panel.book.rules == RulesFile()


async def test_pin_keeps_the_selected_pair(tmp_path: Path) -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        await pilot.press("p")
        assert "no pair is selected" in next(iter(app._notifications)).message
        app.panel.selected = app.session.alignment.pairs[5]
        await pilot.press("p")
        await settled(app, pilot)
        pinned = [pair for pair in app.aligned[-1].alignment.pairs if pair.by == "map"]
        assert [pair.reference.name for pair in pinned] == [app.session.alignment.pairs[5].reference.name]


async def test_a_broken_expression_is_pointed_at_and_not_accepted() -> None:
    app = Host(plain())
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        await pilot.press("a", *"ab(c")
        await until(pilot, lambda: said(app, "#wrong").endswith("\n  ab(c\n    ^"))
        await pilot.press("enter")
        assert app.screen is not app.screen_stack[0]
        await pilot.press("escape")
        assert app.screen is app.screen_stack[0] and app.panel.book.rules == RulesFile()


async def test_a_view_is_added_and_checked() -> None:
    app = Host(plain())
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.rules.focus()
        await pilot.press("v", *"mlp$", "tab", *"cut 0", "enter")
        assert "is not a function" in said(app, "#wrong")
        await pilot.press("escape")
        await pilot.press("v", *"mlp$", "tab", *"squeeze 0", "enter")
        await settled(app, pilot)
        assert [view.reference for view in app.panel.book.rules.views] == ["squeeze 0"]
        assert app.panel.usage is not None and app.panel.usage.views[-1] == 2


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside this checkout")
@pytest.mark.parametrize("case", ["llama", "bert"])
async def test_real_dumps_at_eighty_columns(case: str) -> None:
    app = Host(Session.open(Request(CASES / case / "torch", CASES / case / "max", learn=False)))
    async with app.run_test(size=(80, 24)) as pilot:
        await settled(app, pilot)
        assert f"{len(app.session.alignment.pairs)} paired" in said(app, "#counts")
        assert all(len(line) <= 80 for line in drawn(app.panel.rules).splitlines())


async def test_what_was_learned_stands_before_the_presets_with_its_proof_and_is_kept_by_a_key(tmp_path: Path) -> None:
    candidate = renamed(CANDIDATE, tmp_path / "renamed", lambda name: name.replace("layers.layers.", "gpt.cells."))
    app = Host(Session.open(Request(REFERENCE, candidate)))
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        learned = app.session.dumps.learned
        lines = drawn(app.panel.rules).splitlines()
        own = [line for line in lines if line.split()[-2:-1] == ["learned"]]
        assert learned.rules and own, lines
        assert all(item.is_learned for item in app.panel.rules.items[: len(learned.rules)]), "before the presets'"
        app.panel.rules.focus()
        app.panel.rules.move(0)
        await pilot.pause()
        about, first = said(app, "#line-about"), learned.rules[0]
        assert f"learned, proven on {len(first.proof)}" in about and first.proof[0][0] in about
        assert f"{first.used} pairs" in about and "a keeps all that was learned" in about
        await pilot.press("a")
        await settled(app, pilot)
        kept = app.panel.book.rules
        renamings = [(rule.match, rule.replace) for rule in kept.rules]
        assert renamings == [(r"^model\.gpt\.cells\.(\d+)", r"layers.\1")]
        assert len(kept.maps) < len(learned.maps) and len(app.panel.book.past) == 1
        assert len(app.aligned[-1].alignment.pairs) == len(app.session.alignment.pairs)
        again = app.aligned[-1].dumps.learned
        assert not any("gpt.cells" in rule.candidate for rule in again.maps), "what is kept is not learned again"
