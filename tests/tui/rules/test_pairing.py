"""Orphans and suggestions: picking, the map dialog, expressions, accepting, and names of any kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from pathlib import Path

import pytest
from textual.widgets import Button, Input

from tensordiff.align.rules.tables import MapRule
from tensordiff.align.suggest import Suggestion
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.rules.map_screen import MapScreen
from tests.cli.test_hostile_names import HOSTILE
from tests.making import numbers, save, write
from tests.processes import PATIENCE_S
from tests.tui.rules.panel_host import CANDIDATE, REFERENCE, Host, drawn, opened, orphan, said, with_other_mlp
from tests.tui.waiting import settled, until

SIZE = (120, 40)


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return opened(tmp_path, with_other_mlp)


def says(app: Host, selector: str, text: str) -> bool:
    return text in said(app, selector)


def maps(app: Host) -> tuple[MapRule, ...]:
    return app.panel.book.rules.maps


async def test_pick_one_of_each_side_see_it_and_accept_it_for_every_layer(session: Session) -> None:
    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        app.panel.orphans.focus()
        app.panel.orphans.move(orphan(app, "reference", "layers.0.self_attn.o_proj-output"))
        await pilot.press("p")
        assert "1 picked of the reference" in said(app, "#orphans-heading")
        app.panel.orphans.move(orphan(app, "candidate", "layers.0.self_attn.merge-output"))
        await pilot.press("enter")
        await settled(app, pilot)
        assert isinstance(app.screen, MapScreen)
        shown = said(app, "#found")
        assert "✓ rel L2 2.5e-07" in shown and "[1, 9, 64] float32 against [9, 64] float32" in shown
        assert "every layer: layers.{i}.self_attn.o_proj = layers.{i}.self_attn.merge" in shown
        assert "2 pairs; of 2 measured the worst is ✓" in shown
        assert "Every layer: 2 pairs" in str(app.screen.query_one("#every", Button).label)
        before = len(session.alignment.pairs)
        await pilot.press("ctrl+s")
        await settled(app, pilot)
        assert app.panel.book.rules.maps == (MapRule("layers.{i}.self_attn.o_proj", "layers.{i}.self_attn.merge"),)
        assert len(app.aligned[-1].alignment.pairs) == before + 4, "of both layers the output, and the input with it"


async def test_this_layer_alone(session: Session) -> None:
    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        app.panel.orphans.focus()
        for side, part in (("candidate", "1.self_attn.merge-output"), ("reference", "1.self_attn.o_proj-output")):
            app.panel.orphans.move(orphan(app, side, part))
            await pilot.press("enter")
        await settled(app, pilot)
        await pilot.press("ctrl+l")
        await settled(app, pilot)
        wanted = MapRule("layers.1.self_attn.o_proj", "layers.1.self_attn.merge", every=False)
        assert app.panel.book.rules.maps == (wanted,)
        assert len(app.aligned[-1].alignment.pairs) == len(session.alignment.pairs) + 2, "the output and the input"


async def test_several_of_one_side_are_joined_and_a_pick_can_be_put_back(tmp_path: Path) -> None:
    parts = {f"layers.{k}.{n}": numbers(9, 24, seed=3 * k + j) for k in range(2) for j, n in enumerate("abc")}
    whole = {f"layers.{k}.abc": parts[f"layers.{k}.a"] for k in range(2)}
    both = save(tmp_path / "r.safetensors", parts), save(tmp_path / "c.safetensors", whole)
    app = Host(Session.open(Request(*both, learn=False)))
    async with app.run_test(size=SIZE) as pilot:
        app.panel.orphans.focus()
        for part in ("0.a", "0.b", "0.c", "0.b"):
            app.panel.orphans.move(orphan(app, "reference", part))
            await pilot.press("space")
        app.panel.orphans.move(orphan(app, "candidate", "0.abc"))
        await pilot.press("enter")
        await settled(app, pilot)
        assert app.screen.query_one("#reference", Input).value == "cat(layers.0.a, layers.0.c)"
        shown = said(app, "#found")
        assert "? shapes [9, 48] and [9, 24] differ" in shown and "→ [9, 48] float32" in shown
        await pilot.press("escape")
        await settled(app, pilot)
        assert app.panel.orphans.picks == () and app.aligned == []


async def test_an_expression_is_completed_and_its_mistakes_are_pointed_at() -> None:
    session = Session.open(Request(REFERENCE, CANDIDATE, learn=False))
    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        app.push_screen(MapScreen(session, "", "layers.0.self_attn.qkv_proj"))
        await settled(app, pilot)
        await pilot.press(*"cat(layers.0.self_attn.q_")
        await pilot.pause()
        assert "layers.0.self_attn.q_proj" in said(app, "#offers-reference")
        await pilot.press("right")
        field = app.screen.query_one("#reference", Input)
        assert field.value == "cat(layers.0.self_attn.q_proj"
        for text, wrong in (
            ("cat(layers.0.self_attn.q_proj", "is expected, not the end of the text\n"),
            ("cut(a)", "'cut' is not a function; did you mean cat?\n  cut(a)\n  ^^^"),
            ("layers.0.self_attn.q", "the reference has no layers.0.self_attn.q; did you mean layers.0.self_attn"),
        ):
            field.value = text
            await until(pilot, partial(says, app, "#wrong-reference", wrong))
            assert app.screen.query_one("#every", Button).disabled
            await pilot.press("ctrl+s")
            assert isinstance(app.screen, MapScreen)
        field.value = "cat(layers.{i}.self_attn.q_proj, layers.{i}.self_attn.k_proj, layers.{i}.self_attn.v_proj)"
        app.screen.query_one("#candidate", Input).value = "layers.{i}.self_attn.qkv_proj"
        await until(pilot, lambda: "already paired" in said(app, "#found"))
        await settled(app, pilot)
        assert app.screen.query_one("#layer", Button).disabled
        field.focus()
        await pilot.press("enter")
        assert app.screen.query_one("#every", Button).has_focus


async def test_suggestions_come_when_somebody_comes_and_are_accepted_one_by_one(session: Session) -> None:
    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        await settled(app, pilot)
        assert said(app, "#suggestions-heading") == "suggestions: not looked yet"
        app.panel.suggestions.focus()
        await settled(app, pilot)
        assert said(app, "#suggestions-heading") == "suggestions: 4 by value"
        assert "values agree to" in said(app, "#line-about") and "nothing else fits" in said(app, "#line-about")
        await pilot.press("a")
        await settled(app, pilot)
        assert app.panel.book.rules.maps == (MapRule("layers.{i}.self_attn.o_proj", "layers.{i}.self_attn.merge"),)
        assert said(app, "#suggestions-heading") == "suggestions: 2 by value"


async def test_all_above_a_confidence_are_one_change(session: Session) -> None:
    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        app.panel.suggestions.focus()
        await settled(app, pilot)
        await pilot.press("A")
        await pilot.pause()
        field = app.screen.query_one(Input)
        field.value = "many"
        await pilot.press("enter")
        assert "a number from 0 to 1" in said(app, "#wrong")
        field.value = "0.9"
        await pilot.press("enter")
        await settled(app, pilot)
        assert len(maps(app)) == 2 and len(app.panel.book.past) == 1
        await pilot.press("u")
        await settled(app, pilot)
        assert maps(app) == ()


async def test_looking_can_be_stopped(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()
    looked = PairedDumps.suggestions

    def slow(dumps: PairedDumps, tick: Callable[[], None]) -> Iterator[Suggestion]:
        begun.set()
        try:
            for _ in repeat(None):
                tick()
        finally:
            ended.set()
        yield from ()

    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        monkeypatch.setattr(PairedDumps, "suggestions", slow)
        app.panel.orphans.focus()
        await pilot.pause()
        assert begun.wait(PATIENCE_S) and "looking" in said(app, "#suggestions-heading")
        await pilot.press("s")
        assert ended.wait(PATIENCE_S)
        assert "stopped" in said(app, "#suggestions-heading")
        monkeypatch.setattr(PairedDumps, "suggestions", looked)
        await pilot.press("s")
        await settled(app, pilot)
        assert said(app, "#suggestions-heading") == "suggestions: 4 by value"


async def test_orphans_are_filtered_and_say_why(session: Session) -> None:
    app = Host(session)
    async with app.run_test(size=SIZE) as pilot:
        app.panel.orphans.focus()
        await settled(app, pilot)
        whole = len(app.panel.orphans.all)
        await pilot.press("slash", *"merge")
        await settled(app, pilot)
        assert [one.side for one in app.panel.orphans.items] == ["candidate"] * 4
        await pilot.press("enter")
        assert app.panel.orphans.has_focus and f"4 of {whole}" in said(app, "#orphans-heading")
        assert "on the other side" in said(app, "#line-about")
        await pilot.press("slash", "home", "exclamation_mark")
        await settled(app, pilot)
        assert len(app.panel.orphans.items) == whole - 4
        await pilot.press("escape")
        assert len(app.panel.orphans.items) == whole and app.panel.orphans.has_focus
        app.panel.orphans.show_matching("(")
        await settled(app, pilot)
        assert app.panel.orphans.items == []


async def test_no_name_crashes_or_vanishes(tmp_path: Path) -> None:
    # Far wider than any terminal, and short enough: how alike two names are is found in the square of their length.
    names = dict.fromkeys(name[:500] for name in (*HOSTILE.values(), "[bold]x[/]", "a\nb", "名前.层"))
    made = {name: numbers(9, 16, seed=k) for k, name in enumerate(names)}
    both = (
        write(tmp_path / "r", made),
        write(tmp_path / "c", {f"other.{name}": array for name, array in made.items()}),
    )
    app = Host(Session.open(Request(*both, learn=False)))
    async with app.run_test(size=(80, 90)) as pilot:
        app.panel.orphans.focus()
        await settled(app, pilot)
        for k in range(len(app.panel.orphans.items)):
            app.panel.orphans.move(k)
        await pilot.pause()
        assert "blocks[/0]" in drawn(app.panel.orphans) and "a\\nb" in drawn(app.panel.orphans)
        assert "名前.层" in drawn(app.panel.orphans)
        app.panel.search.accept_above("0.5")
        await settled(app, pilot)
        assert app.aligned and not app.aligned[-1].alignment.reference_orphans
        app.panel.rules.focus()
        await pilot.resize_terminal(80, 24)
        app.panel.rules.action_edit()
        await settled(app, pilot)
        dialog = app.screen
        assert isinstance(dialog, MapScreen)
        for one in app.panel.book.rules.maps:
            dialog.query_one("#reference", Input).value = one.reference
            dialog.query_one("#candidate", Input).value = one.candidate
            dialog.attempt()
            await pilot.pause()
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert "rel L2 0" in said(app, "#found")
