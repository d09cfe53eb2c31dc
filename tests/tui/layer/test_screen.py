"""Moving about in the layer screen: rows, views, what is handed to the shell, what is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual import events
from textual.widgets import Tabs

from tensordiff.report.labels import number
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.layer.pane import Pane
from tensordiff.tui.layer.profile import ProfilePane
from tensordiff.tui.layer.screen import VIEWS, LayerScreen
from tensordiff.tui.layer.subject import Subject
from tests.making import numbers
from tests.tui.layer.layer_host import CULPRIT, of, samples, showing

CASES = Path(__file__).parents[4] / "shared" / "cases"


async def test_next_and_previous_without_leaving() -> None:
    async with showing(samples()) as shown:
        at = shown.app.at
        await shown.show("statistics")
        text = await shown.press("j")
        row = shown.screen.row
        assert row is shown.app.rows[at + 1] and row.diff
        assert shown.screen.pane.id == "statistics"
        assert number(row.diff.max_abs) in text
        await shown.press("k", "k")
        assert shown.screen.at == at - 1
        assert f"#{at - 1}" in shown.facts


async def test_the_ends_of_the_list_are_ends() -> None:
    async with showing(samples()) as shown:
        last = len(shown.app.rows) - 1
        shown.screen.walk_to(last)
        await shown.press("j")
        assert shown.screen.at == last
        assert shown.screen.check_action("walk", (1,)) is None
        assert shown.screen.check_action("walk", (-1,)) is True
        shown.screen.walk_to(last + 5)
        assert shown.screen.at == last


async def test_views_by_bracket_by_number_and_by_mouse() -> None:
    async with showing(samples(), size=(100, 30)) as shown:
        for name in (*list(VIEWS)[1:], "profile"):
            await shown.press("right_square_bracket")
            assert shown.screen.pane.id == name
        await shown.press("left_square_bracket")
        assert shown.screen.pane.id == "neighbours"
        await shown.press("2")
        assert shown.screen.pane.id == "histogram"
        await shown.pilot.click("#tab-worst")
        await shown.settle()
        assert shown.screen.pane.id == "worst"
        assert shown.screen.focused is shown.screen.pane


async def test_the_mouse_points_at_what_it_clicks() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        await shown.show("worst")
        await shown.pilot.click("#worst", offset=(10, 4))
        assert shown.screen.query_one("#worst").at == 2  # type: ignore[attr-defined]
        await shown.show("heatmap")
        await shown.pilot.click("#heatmap", offset=(1 + 7 + 10, 2 + 3))
        await shown.settle()
        assert shown.text.splitlines()[-1].startswith("token 6, channel 20…21")  # two tokens a line
        await shown.show("profile")
        await shown.pilot.click("#profile", offset=(1 + 7 + 2 * 7, 6))
        await shown.settle()
        assert shown.text.splitlines()[-1].startswith("token 2")


async def test_the_footer_offers_only_what_can_be_done_here() -> None:
    async with showing(samples()) as shown:
        allowed = {name: set(view.can) for name, view in VIEWS.items()}
        for view in VIEWS:
            await shown.show(view)
            active = {one.binding.action.partition("(")[0] for one in shown.screen.active_bindings.values()}
            assert {"zoom", "side", "axis", "heads"} & active == {"zoom", "side", "axis", "heads"} & allowed[view]


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_leaving_tells_where_one_was(key: str) -> None:
    async with showing(samples()) as shown:
        await shown.press("j", "j", key)
        assert not isinstance(shown.app.screen, LayerScreen)
        assert shown.app.left == shown.app.at + 2


async def test_what_the_shell_must_do_is_handed_over() -> None:
    async with showing(samples()) as shown:
        row = shown.screen.row
        await shown.press("i", "o", "e")
        assert shown.app.asked == [("inject", row), ("ops", row), ("export", row)]


async def test_copying(monkeypatch: pytest.MonkeyPatch) -> None:
    async with showing(samples()) as shown:
        await shown.show("statistics")
        await shown.press("y")
        assert shown.app.clipboard == CULPRIT
        await shown.press("Y")
        assert "✗ diverges" in shown.app.clipboard and "median" in shown.app.clipboard


async def test_from_culprit_to_culprit(tmp_path: Path) -> None:
    names = [f"layers.{k}-{port}" for k in range(6) for port in ("input_0", "output")]
    tensors = {name: numbers(3, 4, seed=k) for k, name in enumerate(names)}
    wrong = {name: value * (7 if name in (names[3], names[9]) else 1) for name, value in tensors.items()}
    async with showing(of(tmp_path, tensors, wrong), "layers.0") as shown:
        await shown.press("n")
        assert shown.screen.row.pair.name == "layers.1" and "the first culprit" in shown.facts
        await shown.press("n")
        assert shown.screen.row.pair.name == "layers.4" and "a culprit" in shown.facts
        await shown.press("n")
        assert shown.screen.row.pair.name == "layers.4" and "no culprit further on" in shown.said()
        await shown.press("N")
        assert shown.screen.row.pair.name == "layers.1"


async def test_to_the_module_around() -> None:
    async with showing(samples()) as shown:
        await shown.press("backspace")
        assert shown.screen.row.pair.name == "layers.1.mlp"
        await shown.press("P")
        assert shown.screen.row.pair.name == "layers.1"


async def test_an_answer_to_an_older_question_is_dropped() -> None:
    async with showing(samples()) as shown:
        pane = shown.screen.query_one(ProfilePane)
        old, question, answer = pane.subject, pane.question(), pane.answer
        assert old is not None and answer is not None
        shown.screen.walk_to(0)
        await shown.settle()
        now = pane.answer
        pane.post_message(Pane.Answered(old, question, answer, "", True))
        await shown.settle()
        assert pane.answer is now


async def test_the_head_has_room_for_the_hint_though_the_screen_was_laid_out_before_it() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        facts = shown.screen.facts
        assert facts.asked and facts.answer and facts.answer.hint
        few = facts.answer._replace(hint=None, is_hinted=False)
        whole = Pane.Answered(*facts.asked, facts.answer, "", True)
        facts.on_pane_answered(Pane.Answered(*facts.asked, few, "", False))
        # Laid out for another widget's sake, before the head was idle. Textual kept that height for the second answer.
        shown.screen._clear_arrangement_cache()
        shown.screen._refresh_layout()
        facts.on_pane_answered(whole)
        await shown.settle()
        assert facts.size.height == len(facts.lines())


async def test_hurrying_through_rows_ends_with_the_last_one_s_numbers() -> None:
    async with showing(samples()) as shown:
        await shown.show("statistics")
        for _ in range(12):
            shown.screen.action_walk(-1)
        await shown.settle()
        row = shown.screen.row
        assert shown.screen.at == shown.app.at - 12 and row.diff
        assert number(row.diff.mse) in shown.text


async def test_a_view_that_fails_says_so_and_the_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ProfilePane, subject: Subject, question: object) -> Iterator[object]:
        yield 1 / len(())

    monkeypatch.setattr(ProfilePane, "answers", broken)
    async with showing(samples()) as shown:
        assert "this view failed: ZeroDivisionError('division by zero'); the others still work" in " ".join(
            shown.text.split()
        )
        assert "division by zero" in shown.said()
        assert "1,152 elements" in await shown.show("histogram")


async def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    session = of(tmp_path, {"x-output": numbers(3, 4)}, {"x-output": numbers(3, 4, seed=1)})
    rows = list(session.rows())
    (tmp_path / "b.safetensors").unlink()
    async with showing(session, "x", rows=rows) as shown:
        assert "b.safetensors" in shown.text or "|Δ| along" in shown.text  # mapped already, or told which is gone


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside this checkout")
@pytest.mark.parametrize("case", ["bert", "qwen3", "llama_bf16"])
async def test_every_row_of_a_real_pair_can_be_walked(case: str) -> None:
    session = Session.open(Request(CASES / case / "torch", CASES / case / "max"))
    rows = list(session.rows())
    async with showing(session, rows[1].pair.name, rows=rows) as shown:
        shown.screen.walk_to(0)
        for view in ("heatmap", "values", "neighbours"):
            await shown.show(view)
            for at in range(0, len(rows), 15):
                shown.screen.walk_to(at)
                await shown.settle()
                assert "failed" not in shown.text and "reading…" not in shown.text
                assert rows[at].pair.name.rpartition(".")[2] in shown.facts


async def test_keys_that_come_all_at_once_are_one_index() -> None:
    async with showing(samples()) as shown:
        await shown.show("values")
        for key in ("0", "comma", "3", "comma", "1", "7", "enter"):  # as a terminal sends what was typed quickly
            shown.app.post_message(events.Key(key, {"comma": ",", "enter": "\r"}.get(key, key)))
        await shown.settle()
        assert shown.text.splitlines()[-1].startswith("[0, 3, 17]")


async def test_views_that_are_passed_quickly_are_all_passed() -> None:
    async with showing(samples()) as shown:
        for _ in range(5):
            shown.app.post_message(events.Key("right_square_bracket", "]"))
        await shown.settle()
        assert shown.screen.pane.id == list(VIEWS)[5]
        assert shown.screen.query_one(Tabs).active == "tab-statistics"
        assert shown.screen.focused is shown.screen.pane
