"""Opening and reading: the table fills, sorts, filters, folds, and keeps the cursor on its row."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from textual.widgets import Input, Static

from tensordiff.report.comparison_json import row_json
from tensordiff.session.request import Request
from tensordiff.tui.layer.facts import FactsPane
from tensordiff.tui.layer.screen import LayerScreen
from tensordiff.tui.table import lines
from tensordiff.tui.table.columns import columns_without, lay_out
from tensordiff.tui.table.model import Listing, Order, Pattern, Positions
from tensordiff.tui.table.summary import Summary
from tests.cli.command import process
from tests.making import SAMPLES, nudged, numbers, save, write
from tests.tui.app_host import CASES, CULPRIT, GOLDEN, INJECTED, Running, running, samples

needs_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the cases are not beside this checkout")


async def test_it_opens_and_names_the_culprit() -> None:
    async with running(samples()) as run:
        assert len(run.table.listing) == 76
        assert run.table.listing.measured == 76
        assert "layers.0.self_attn.q_proj" in run.names
        assert not any("input" in name for name in run.names if name.startswith("layers.0.mlp "))
        told = str(run.screen.query_one(Summary).render())
        assert "76 pairs" in told
        assert f"first at {CULPRIT}" in told
        run.screen.action_culprit(1)
        await run.settle()
        culprit = next(line for line in run.lines() if CULPRIT in line)
        assert culprit.startswith(" ►✗")


@needs_cases
@pytest.mark.parametrize("case", ["llama", "llama_bf16", "qwen3", "phi3", "bert"])
async def test_real_dumps_open(case: str) -> None:
    async with running(Request(CASES / case / "torch", CASES / case / "max"), (80, 24)) as run:
        assert run.owner.outcome is not None
        assert run.owner.outcome.culprit is None
        assert run.table.listing.measured == len(run.table.listing) > 20
        assert run.said() == ""


async def test_the_first_paint_reads_no_tensor(opens: list[str]) -> None:
    from tensordiff.tui.app import TensordiffApp

    app = TensordiffApp(samples(), saves_state=False)
    async with app.run_test() as pilot:
        opens.clear()
        before = [name for name in opens if name.endswith((".pt", ".safetensors"))]
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert before == []


async def test_next_and_previous_culprit() -> None:
    async with running(samples()) as run:
        await run.press("n")
        assert run.name == CULPRIT
        await run.press("n")
        assert "there is none below" in run.said()
        run.table.action_end(1)
        await run.press("N")
        assert run.name == CULPRIT


async def test_moving() -> None:
    async with running(samples()) as run:
        await run.press("j", "down", "k")
        assert run.table.cursor == 1
        await run.press("G")
        assert run.table.cursor == len(run.table.lines) - 1
        await run.press("g", "ctrl+d")
        assert run.table.cursor == run.table._page


async def test_sorting_keeps_the_cursor_on_its_row() -> None:
    async with running(samples()) as run:
        run.screen.action_culprit(1)
        run.table.sort_by("rel_l2")
        await run.settle()
        assert run.name == CULPRIT
        values = run.table.listing.column("rel_l2")[[run.table.line(k).row for k in range(len(run.table.lines))]]
        assert (np.diff(values) <= 0).all()
        await run.press("S")
        assert run.name == CULPRIT
        assert run.table.line(0).row != run.table.position
        await run.press("0")
        assert run.table.how.by is None
        await run.press("s")
        assert run.table.how.by == "layer"


async def test_filter_by_typing_and_escape() -> None:
    async with running(samples()) as run:
        await run.press("slash", *"mlp$")
        assert run.names
        assert all(name.endswith("mlp") for name in run.names)
        run.screen.query_one(Input).value = "!layers"
        await run.settle()
        assert run.names
        assert not any("layers" in name for name in run.names)
        run.screen.query_one(Input).value = "["
        await run.settle()
        assert "unterminated" in str(run.screen.query_one("#filter-wrong").render())
        await run.press("escape")
        assert len(run.names) == len(run.table.listing.order(Order()))


async def test_a_filter_that_was_left_does_not_come_back_when_a_thread_has_its_rows() -> None:
    async with running(samples()) as run:
        pane, pattern = run.screen.pane, Pattern.parse("mlp$")
        assert pattern is not None
        pane.filter(pattern)
        await run.until(lambda: run.table.how.only is not None)
        only = run.table.how.only
        assert only is not None
        late = pane._Matched(run.table.listing, pattern, only)
        pane.filter(None)
        assert run.table.how.only is None
        pane.post_message(late)
        await run.settle()
        assert run.table.how.only is None


async def test_nothing_is_said_anew_for_each_character_of_a_filter() -> None:
    async with running(samples()) as run:
        said = run.screen.query_one("#filter-wrong", Static)
        await run.press("slash", "m")
        before = said.visual
        await run.press("l")
        assert said.visual is before
        await run.press("[")
        assert "unterminated" in str(said.render())
        await run.press("backspace")
        assert str(said.render()) == ""


async def test_faults_and_inputs() -> None:
    async with running(samples()) as run:
        await run.press("f", "f", "I")
        assert len(run.names) == 76
        await run.press("I")
        assert len(run.names) < 76


@pytest.mark.parametrize("candidate", ["candidate", "max"])
async def test_f_shows_the_rows_that_faults_prints(candidate: str) -> None:
    request = replace(samples(), candidate=SAMPLES / candidate)
    printed = process("compare", str(request.reference), str(request.candidate), "--faults").out
    # "✗    57 layers.1.mlp.act_fn   4.61e-02 …": the number, and the name with its port
    expected = [line.split()[1] for line in printed.splitlines() if re.match(r"[✓~✗?] +\d+ \w[\w.]+ .*\de[+-]\d", line)]
    async with running(request, (200, 60)) as run:
        await run.press("f")
        shown = [run.table.listing.pairs[run.table.line(k).row].index for k in range(len(run.table.lines))]
        assert [str(index) for index in shown] == expected
        assert bool(shown) == (candidate == "candidate")
        before = run.names
        await run.press("I")
        assert run.names == before and "f shows all" in run.said()


async def test_the_heading_says_which_rows_are_left_out() -> None:
    async with running(samples(), (80, 24)) as run:
        assert "layer (35 of 76: outputs)" in run.lines()[0]
        await run.press("f")
        assert "layer (11 of 76: faults)" in run.lines()[0]
        await run.press("slash", *"mlp", "enter")
        assert "layer (4 of 76: faults, filtered)" in run.lines()[0]
        await run.press("w")
        assert "layer (4 of 76: faults, filtered)" in run.lines()[0]
        await run.press("f", "I", "escape", "w")
        assert "layer " in run.lines()[0] and "of 76" not in run.lines()[0]


async def test_a_row_has_one_number_in_table_layer_search_and_json() -> None:
    async with running(samples()) as run:
        await run.press("n")
        line = next(line for line in run.lines() if "►" in line)
        number = line.split()[1]
        assert run.screen.pane.row is not None
        assert number == str(row_json(run.screen.pane.row)["index"]) == "57"
        await run.press("enter")
        facts = run.app.screen.query_one(FactsPane)
        assert f"#{number}" in "\n".join(facts.render_line(y).text for y in range(facts.size.height))


async def test_a_filter_opens_the_tree_and_its_marks_say_so() -> None:
    async with running(samples()) as run:
        await run.press("w")
        assert "▸ 1" in "\n".join(run.lines())
        await run.press("slash", *"act_fn", "enter")
        shown = "\n".join(run.lines())
        assert "act_fn" in shown and "▾ 1" in shown and "▸" not in shown
        await run.press("escape")
        assert "▸ 1" in "\n".join(run.lines())


async def test_the_tree_folds_and_unfolds() -> None:
    async with running(samples()) as run:
        await run.press("w")
        text = "\n".join(run.lines())
        assert "▾ layers" in text
        assert "▸ 0" in text
        assert "q_proj" not in text
        assert "✗" in next(line for line in run.lines() if "▸ 1" in line)
        run.screen.action_culprit(1)
        await run.settle()
        assert run.name == CULPRIT
        assert "▾ 1" in "\n".join(run.lines())
        await run.press("h")
        assert run.name == "layers.1.mlp"
        await run.press("h")
        assert "act_fn" not in "\n".join(run.lines())
        await run.press("w")
        assert "layers.0.self_attn.q_proj" in run.names


async def test_go_to_a_layer_by_typing() -> None:
    async with running(samples()) as run:
        await run.press("l", *"1 up", "enter")
        assert run.name == "layers.1.mlp.up_proj"


async def test_columns_can_be_chosen() -> None:
    async with running(samples()) as run:
        before = [placed.column.id for placed in run.table.placed]
        await run.press("C", "enter", "ctrl+s")
        assert [placed.column.id for placed in run.table.placed] == [name for name in before if name != "index"]


async def test_copying() -> None:
    async with running(samples()) as run:
        run.screen.action_culprit(1)
        await run.press("y")
        assert run.app.clipboard == CULPRIT
        await run.press("Y")
        assert json.loads(run.app.clipboard)["name"] == CULPRIT


async def test_the_mouse_sorts_selects_and_opens() -> None:
    async with running(samples()) as run:
        heading = run.table.heading("rel_l2")
        await run.pilot.click(run.table, offset=(heading.x + 2, 0))
        assert run.table.how.by == "rel_l2"
        await run.pilot.click(run.table, offset=(heading.x + 2, 0))
        assert not run.table.how.descending
        await run.pilot.click(run.table, offset=(10, 5))
        assert run.table.cursor == 4
        await run.pilot.click(run.table, offset=(10, 5), times=2)
        await run.settle()
        assert run.app.screen is not run.screen


async def test_injected_and_golden_have_columns_where_they_are() -> None:
    async with running(samples(injected=INJECTED, golden=GOLDEN), (200, 60)) as run:
        shown = [placed.column.id for placed in run.table.placed]
        assert {"injected", "golden", "why", "verdict", "amplification"} <= set(shown)
    async with running(samples()) as run:
        shown = [placed.column.id for placed in run.table.placed]
        assert not {"injected", "golden"} & set(shown)


async def test_a_small_terminal_is_usable_and_resizing_is_harmless() -> None:
    async with running(samples(), (80, 24)) as run:
        assert not run.screen.query_one("#plot").display
        run.screen.action_culprit(1)
        await run.settle()
        assert any(CULPRIT in line and "8.28e-02" in line for line in run.lines())
        for size in ((200, 60), (20, 6), (1, 1), (80, 24)):
            await run.pilot.resize_terminal(*size)
            await run.settle()
        assert run.name == CULPRIT
        assert any(CULPRIT in line for line in run.lines())


async def test_marks() -> None:
    async with running(samples()) as run:
        await run.press("space")
        assert len(run.table.marks) == 1
        assert run.lines()[1].startswith("●")
        assert run.table.cursor == 1
        await run.press("k", "space")
        assert not run.table.marks


async def test_the_tolerance_can_be_moved() -> None:
    async with running(samples()) as run:
        run.screen.judge_by(1.0)
        await run.settle()
        assert run.verdict == "agrees"
        await run.press("t")
        run.app.screen.query_one(Input).value = "no"
        await run.press("enter")
        assert "not a tolerance" in str(run.app.screen.query_one("#wrong").render())
        run.app.screen.query_one(Input).value = ""
        await run.press("enter")
        assert run.verdict == "diverges"
        await run.press("right_parenthesis")
        assert run.owner.session and run.owner.session.comparer.limits.threshold == pytest.approx(1e-4)


# --- odd names -----------------------------------------------------------------------------------

ODD = [
    "blocks[/0]", "[red]x[/]", "a\nb", "\x1b[31mred", "語" * 30, "e\u0301" * 20, "\u202ertl", "", " ", "[b",
    "👩\u200d👩",
]  # fmt: skip


async def test_odd_names_are_all_there(tmp_path: Path) -> None:
    await _all_there(tmp_path, ODD)


_NAMES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30), min_size=48, max_size=48)


# Many names in one run of the app, since starting it takes long: no simple ones, and no search for a smaller list.
@settings(
    max_examples=1, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)  # fmt: skip
@given(_NAMES.filter(lambda some: sum(not name.isascii() for name in some) > 24))
def test_no_name_crashes_or_vanishes(tmp_path_factory: pytest.TempPathFactory, some: list[str]) -> None:
    import asyncio

    asyncio.run(_all_there(tmp_path_factory.mktemp("odd"), some))


async def _all_there(folder: Path, some: list[str]) -> None:
    tensors = {f"n{k}.{name}": numbers(2, 2) for k, name in enumerate(some)}
    moved = {name: nudged(array, 0.5) for name, array in tensors.items()}
    reference, candidate = save(folder / "r.safetensors", tensors), save(folder / "c.safetensors", moved)
    async with running(Request(reference, candidate), (100, len(some) + 20)) as run:
        assert len(run.table.lines) == len(tensors)
        run.table.go(0)
        for keys in (("w",), ("plus",), ("w",), ("s",), ("Y",), ("enter",)):
            await run.press(*keys)
        await _each_opened(run, len(some))
        await run.settle()
        for k in range(len(some)):
            run.table.reveal(k)
            run.screen.action_copy("json")
            assert any(f"n{k}." in line or f"n{k} " in line for line in run.lines())


async def _each_opened(run: Running, count: int) -> None:
    """Walk through all layers on the layer screen, and back."""
    layer = run.app.screen
    assert isinstance(layer, LayerScreen)
    for k in range(count):
        layer.walk_to(k)
        await run.pilot.pause()
        assert f"n{k}" in layer.facts.text()
    layer.action_leave()


async def test_dumps_without_a_common_name(tmp_path: Path) -> None:
    reference = write(tmp_path / "r", {"a": numbers(2)})
    candidate = write(tmp_path / "c", {"zz": numbers(7)})
    async with running(Request(reference, candidate)) as run:
        assert "nothing could be paired" in run.said()
        await run.press("n", "enter", "space", "b", "w", "y")


async def test_very_many_rows_are_sorted_in_a_thread_into_the_same_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million numbers take longer to sort than a key may wait; keys go on meanwhile, and the last order counts."""
    sorted_in: list[str] = []
    order = Listing.order

    def noted(listing: Listing, how: Order) -> object:
        sorted_in.append(f"{how.by} {'here' if threading.current_thread() is threading.main_thread() else 'apart'}")
        return order(listing, how)

    async with running(samples()) as run:
        run.table.sort_by("rel_l2")
        expected = run.names
        run.table.sort_by(None)
        in_order = run.names
        monkeypatch.setattr(lines, "_SORTED_AT_ONCE", 10)
        monkeypatch.setattr(Listing, "order", noted)
        run.table.reveal(40)
        name = run.name
        run.table.sort_by("mse")
        run.table.sort_by("verdict")
        run.table.sort_by("rel_l2")
        assert run.names == in_order
        await run.settle()
        assert (run.names, run.name) == (expected, name)
        assert sorted_in == ["mse apart", "rel_l2 apart"]
        run.screen.judge_by(1e-3)  # another alignment or measuring keeps the order
        await run.settle()
        assert run.table.how.by == "rel_l2"
        run.table.sort_by(None)
        assert run.names == in_order


async def test_a_sort_that_fails_is_told_and_later_ones_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(listing: Listing, how: Order) -> Positions:
        raise MemoryError("too many rows")

    async with running(samples()) as run:
        monkeypatch.setattr(lines, "_SORTED_AT_ONCE", 10)
        names = run.names
        with monkeypatch.context() as broken:
            broken.setattr(Listing, "order", fail)
            run.table.sort_by("layer")
            await run.settle()
        assert "too many rows" in run.said() and run.names == names
        run.table.sort_by("rel_l2")
        await run.settle()
        assert run.names != names


def test_the_number_of_every_row_is_shown_whole() -> None:
    for rows, width in ((0, 5), (100_000, 5), (100_001, 6), (1_000_000, 6), (1_000_001, 7)):
        placed = {one.column.id: one for one in lay_out(80, 30, None, columns_without(()), rows)}
        assert placed["index"].width == width
        assert max(one.end for one in placed.values()) <= 80
