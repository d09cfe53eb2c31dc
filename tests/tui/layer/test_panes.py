"""Each view of a layer shows true numbers: against whole-array numpy on the samples."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tensordiff.compare.look.elements import worst_elements
from tensordiff.dump.dtypes import Array
from tensordiff.report.labels import number
from tensordiff.tui.layer import worst as worst_table
from tensordiff.tui.layer.heatmap import HeatmapPane
from tensordiff.tui.layer.profile import ProfilePane
from tensordiff.tui.layer.scale import scale_of
from tensordiff.tui.layer.values import ValuesPane
from tests.making import SAMPLES, numbers
from tests.tui.layer.layer_host import CULPRIT, of, samples, showing, wide


async def test_facts_name_both_sides_and_say_why() -> None:
    async with showing(samples(injected=SAMPLES / "candidate_injected", golden=SAMPLES / "golden")) as shown:
        facts, row = shown.facts, shown.screen.row
    assert facts.count("model.model.layers.1.mlp.act_fn-output") == 2
    assert f"✗ diverges  {CULPRIT}" in facts
    assert "output, call 1, step 0" in facts
    assert facts.count("float32 [1, 9, 128]") == 2
    assert "the first culprit: rel_l2 8.3e-02 even when given the reference's inputs" in facts
    assert row.diff and row.injected and row.golden_ratio
    assert f"injected {number(row.injected.rel_l2)}" in facts
    assert f"golden ×{row.golden_ratio:.2g}" in facts
    assert "looks like" in facts


async def test_amplification_is_error_out_over_error_in() -> None:
    async with showing(samples()) as shown:
        facts, rows, row = shown.facts, shown.screen.rows, shown.screen.row
    given = next(one for one in rows if one.pair.name == CULPRIT and one.is_input)
    assert row.diff and given.diff and given.diff.rel_l2 > 0
    assert f"in {number(given.diff.rel_l2)}  ×{row.diff.rel_l2 / given.diff.rel_l2:.2g}" in facts


async def test_the_hint_s_evidence_is_told_once(tmp_path: Path) -> None:
    tensors = {"x-output": numbers(4, 8)}
    async with showing(of(tmp_path, tensors, {"x-output": 1.5 * tensors["x-output"]}), "x", (160, 40)) as shown:
        hint = shown.screen.session.hint(shown.screen.row)
        assert hint is not None and hint.kind == "scale" and set(hint.evidence) == {"factor", "residual"}
        said = " ".join(shown.facts.split())
        assert f"looks like {hint.sentence}" in said and "1.5" in hint.sentence
        assert "factor" not in said and "residual" not in said  # the sentence has both numbers


async def test_no_idea_is_an_answer_too(tmp_path: Path) -> None:
    session = of(tmp_path, {"x-output": numbers(4, 8)}, {"x-output": numbers(4, 8, seed=1)})
    async with showing(session, "x") as shown:
        assert shown.screen.session.hint(shown.screen.row) is None
        assert "looks like no known error pattern" in shown.facts


async def test_a_victim_is_not_asked_what_kind_of_error_it_is() -> None:
    async with showing(samples(injected=SAMPLES / "candidate_injected"), "layers.1.mlp.down_proj") as shown:
        assert "~ drifts" in shown.facts and "looks like" not in shown.facts


async def test_profile_along_each_axis() -> None:
    async with showing(samples()) as shown:
        ref, cand = wide(shown.screen.row)
        error = np.abs(cand - ref)[0]
        text = await shown.show("profile")
        assert "▸token (9)" in text and "channel (128)" in text
        assert f"token 0 (id 263)  largest |Δ| {number(error[0].max())}  rms {number(_rms(error[0]))}" in text
        text = await shown.press("right", "right", "right")
        assert f"token 3 (id 294)  largest |Δ| {number(error[3].max())}  rms {number(_rms(error[3]))}" in text
        assert f"worst: token {error.max(1).argmax()}" in text
        text = await shown.press("v", "right")
        assert "▸channel (128)" in text
        pane = shown.screen.pane
        assert isinstance(pane, ProfilePane) and pane.answer
        np.testing.assert_array_equal(pane.answer.along.largest, error.max(0))
        text = await shown.press("v")
        assert "▸token (9)" in text


def _rms(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


async def test_bars_are_on_a_log_scale_unless_asked() -> None:
    async with showing(samples()) as shown:
        text = await shown.show("profile")
        assert "1e-01│" in text and "1e-02│" in text
        text = await shown.press("l")
        assert "1e-02│" not in text and "4.6e-02│" in text


async def test_histogram_counts_are_numpy_s() -> None:
    async with showing(samples(), size=(80, 24)) as shown:  # so few lines that every bin is a decade
        text = await shown.show("histogram")
        ref, cand = wide(shown.screen.row)
    error = np.abs(cand - ref)
    assert "|Δ| of 1,152 elements" in text
    found = [
        (float(line[1]), float(line[2]), int(line[3].replace(",", "")))
        for line in re.finditer(r"^ *(\d\S*e\S+) +(\d\S*e\S+) +([\d,]+) ", text, re.M)
    ]
    assert sum(count for _, _, count in found) == np.count_nonzero(error)
    for low, high, count in found:
        assert np.count_nonzero((error >= low) & (error < high)) == count


async def test_heatmap_cells_are_the_largest_of_their_blocks() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        text = await shown.show("heatmap")
        pane, (ref, cand) = shown.screen.pane, wide(shown.screen.row)
        error = np.abs(cand - ref)[0]
        assert isinstance(pane, HeatmapPane) and pane.answer
        assert "|Δ| token × channel  9 × 128  a cell is the largest of 1 × 2" in text
        np.testing.assert_array_equal(pane.answer.cells, error.reshape(9, 64, 2).max(2))
        assert f"token 0, channel 0…1  largest |Δ| {number(error[0, :2].max())}" in text
        text = await shown.press("down", "right", "right")
        assert f"token 1, channel 4…5  largest |Δ| {number(error[1, 4:6].max())}" in text
        text = await shown.press("plus")
        assert "a cell is one element" in text
        assert f"token 1, channel 4  largest |Δ| {number(error[1, 4])}" in text
        text = await shown.press("right")
        assert f"token 1, channel 5  largest |Δ| {number(error[1, 5])}" in text
        text = await shown.press("0")
        assert f"token 1, channel 4…5  largest |Δ| {number(error[1, 4:6].max())}" in text


async def test_heatmap_in_shades_tells_sizes_apart_without_colour() -> None:
    async with showing(samples(), size=(120, 40)) as shown:
        coloured = await shown.show("heatmap")
        shaded = await shown.press("s")
    assert "▀" in coloured and not re.search("[░▒▓]", coloured)
    assert "▀" not in shaded and all(shade in shaded for shade in "░▒▓█")


async def test_the_whole_picture_has_a_scale_of_its_own_whatever_was_drawn_before() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        await shown.show("heatmap")
        pane = shown.screen.query_one(HeatmapPane)
        coloured = pane.answer
        await shown.press("s")
        shaded = pane.answer
        assert coloured and shaded and coloured.cells.shape != shaded.cells.shape
        assert (coloured.scale, shaded.scale) == (scale_of(coloured.cells), scale_of(shaded.cells))
        await shown.press("plus")
        assert pane.answer and pane.answer.view.zoom and pane.answer.scale == shaded.scale  # a part, as in the whole


async def test_a_picture_painted_in_the_midst_of_a_change_of_theme_is_painted_again() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        await shown.show("heatmap")
        shown.app.theme = "textual-light"  # known by name at once; its colours follow with the next message
        panes = (shown.screen.facts, shown.screen.pane)
        painted = [[pane.render_line(y) for y in range(pane.content_size.height)] for pane in panes]
        await shown.settle()
        anew = [[pane.render_line(y) for y in range(pane.content_size.height)] for pane in panes]
        muted = shown.screen.facts.get_component_rich_style("pane--muted")
        assert [next(iter(line)).style for line in anew[0][1:3]] == [muted, muted]
        assert all(old != new for old, new in zip(painted, anew, strict=True))


async def test_an_answer_for_other_room_is_asked_for_again() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        await shown.show("heatmap")
        pane = shown.screen.query_one(HeatmapPane)
        coloured = pane.answer
        assert coloured is not None
        pane.shades = True  # half the room, before the pane was told
        pane.take()
        await shown.settle()
        assert pane.answer and pane.answer.view.room == pane.view.room != coloured.view.room


async def test_heads_are_seen_where_a_person_says_so() -> None:
    async with showing(samples(), "layers.1.self_attn.o_proj") as shown:
        await shown.show("heatmap")
        await shown.press("h", "5", "enter")
        assert shown.screen.query_one("Prompt").border_title == "give a number that divides 64: 2, 4, 8, 16, 32, 64"
        text = await shown.press("backspace", "4", "enter")
        ref, cand = wide(shown.screen.row)
        assert "|Δ| token × head  9 × 4  a cell is the largest over every head channel" in text
        pane = shown.screen.pane
        assert isinstance(pane, HeatmapPane) and pane.answer
        np.testing.assert_array_equal(pane.answer.cells, np.abs(cand - ref)[0].reshape(9, 4, 16).max(2))


async def test_heads_are_seen_where_the_dump_shows_them() -> None:
    async with showing(samples(), "layers.1.self_attn.k_proj") as shown:
        assert "head (2)" in await shown.show("profile")
        assert "3 views" in await shown.show("heatmap")
        assert "token × head  9 × 2" in await shown.press("v")


async def test_from_a_cell_to_its_worst_element() -> None:
    async with showing(samples(), size=(80, 24)) as shown:
        await shown.show("heatmap")
        await shown.press("down", "right")
        text = await shown.press("enter")
        ref, cand = wide(shown.screen.row)
        channel = 2 + int(np.abs(cand - ref)[0, 1, 2:4].argmax())
        assert f"[0, 1, {channel}]  A {ref[0, 1, channel]:.6g}  B {cand[0, 1, channel]:.6g}" in text


async def test_values_side_by_side() -> None:
    async with showing(samples()) as shown:
        text = await shown.show("values")
        ref, cand = wide(shown.screen.row)
        worst = np.unravel_index(np.abs(cand - ref).argmax(), ref.shape)
        assert f"[0, {worst[1]}, :]  along channel" in text
        assert _read(text, worst[2])[:2] == pytest.approx([ref[worst], cand[worst]], rel=1e-8)
        text = await shown.press("down", "left")
        at = (0, worst[1] - 1, worst[2] + 1)
        values = _read(text, at[2])
        apart = cand[at] - ref[at]
        assert values == pytest.approx([ref[at], cand[at], apart, abs(apart) / abs(ref[at])], rel=1e-6)


def _read(text: str, place: int) -> list[float]:
    line = next(line for line in text.splitlines() if re.match(rf" *{place} ", line))
    return [float(word) for word in line.split()[1:]]


async def test_typing_an_index_jumps_there_and_d_shows_one_quantity() -> None:
    async with showing(samples()) as shown:
        await shown.show("values")
        text = await shown.press(*"0,3,17", "enter")
        ref, cand = wide(shown.screen.row)
        place = 0, 3, 17
        assert f"[0, 3, 17]  A {ref[place]:.9g}  B {cand[place]:.9g}" in text
        quantities = (ref, cand, cand - ref, np.abs(cand - ref) / np.abs(ref))
        for quantity in quantities:
            text = await shown.press("d")
            line = next(line for line in text.splitlines() if re.match(r" *3 ", line))
            head = text.splitlines()[1].split()
            got = float(line.split()[1 + head.index("17")])
            assert got == pytest.approx(quantity[place], rel=1e-4)
        assert "along channel" in await shown.press("d")


async def test_a_wrong_index_is_told_and_can_be_mended() -> None:
    async with showing(samples()) as shown:
        await shown.show("values")
        await shown.press(*"3,17", "enter")
        prompt = shown.screen.query_one("Prompt")
        assert prompt.border_title == "2 numbers, and it takes 3: one for each of [1, 9, 128]"
        await shown.press("escape")
        assert isinstance(shown.screen.focused, ValuesPane)


@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 4), (3, 2, 5)])
@pytest.mark.parametrize("part", [1, 6, 1 << 20])
def test_the_worst_of_all_parts_are_the_worst(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], part: int
) -> None:
    monkeypatch.setattr(worst_table, "_PART", part)
    monkeypatch.setattr(worst_table, "SHOWN", 4)
    ref, cand = numbers(*shape), np.round(numbers(*shape, seed=1))
    ref = np.where(ref < -1, np.nan, np.round(ref))
    *_, found = worst_table._worst_so_far(ref, cand)
    assert repr(found) == repr(tuple(worst_elements(ref, cand, 4)))


async def test_worst_elements_are_numpy_s() -> None:
    async with showing(samples()) as shown:
        text = await shown.show("worst")
        ref, cand = wide(shown.screen.row)
        error = np.abs(cand - ref)
        order = np.argsort(-error, axis=None, kind="stable")[:10]
        lines = text.splitlines()
        assert lines[0].startswith("the 100 worst of 1,152 elements")
        for line, flat in zip(lines[2:], order.tolist(), strict=False):
            place = np.unravel_index(flat, error.shape)
            index = f"[{', '.join(str(int(at)) for at in place)}]"
            assert f"{index} " in line and f"{ref[place]:.9g}" in line and f"{cand[place]:.9g}" in line
            assert number(error[place]) in line
        await shown.press("down")
        text = await shown.press("enter")
        place = np.unravel_index(int(order[1]), error.shape)
        assert f"A {ref[place]:.9g}  B {cand[place]:.9g}" in text


async def test_statistics_of_both_sides() -> None:
    async with showing(samples()) as shown:
        text = await shown.show("statistics")
        sides = wide(shown.screen.row)
        row = shown.screen.row
    for name, value in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std), ("median", np.median)):
        line = next(line for line in text.splitlines() if line.startswith(f"{name} "))
        assert [float(word) for word in line.split()[1:3]] == pytest.approx([value(side) for side in sides], rel=1e-6)
    line = next(line for line in text.splitlines() if line.startswith("99 %"))
    assert float(line.split()[2]) == pytest.approx(np.quantile(sides[0], 0.99), rel=1e-6)
    assert row.diff and number(row.diff.cosine_distance) in text


async def test_neighbours_and_walking_to_them() -> None:
    async with showing(samples()) as shown:
        text = await shown.show("neighbours")
        lines = text.splitlines()
        assert lines[1] == "its inputs: clean"
        assert re.match(r"  ✓ agrees .* layers.1.mlp.act_fn input_0", lines[2])
        assert lines[3] == "the module around it" and "layers.1.mlp" in lines[4]
        assert "layers.1.mlp.gate_proj" in lines[lines.index("before it") + 1]
        assert "layers.1.mlp.up_proj" in lines[lines.index("after it") + 1]
        text = await shown.press("down", "enter")
        assert shown.screen.row.pair.name == "layers.1.mlp"
        inside = text[text.index("within it (4)") : text.index("before it")]
        assert all(part in inside for part in ("gate_proj", "act_fn", "up_proj", "down_proj"))
