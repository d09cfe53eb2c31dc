"""The application's table against Textual's own ``DataTable``, and how long the event loop stands still.

Both tables are filled with the same rows in the same process, headless at 160×48, taking turns. *Ready* is from
nothing to painted; *sort* and *filter* from the call to painted. A stall is the longest time between two turns of
the event loop while a comparison of real files is opened and measured. ``python -m benchmarks.app`` prints it all.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable

from tensordiff.align.match import Pair
from tensordiff.capture.job import Job
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings as CaptureSettings
from tensordiff.capture.source import parse_source
from tensordiff.compare.engine import Row
from tensordiff.compare.measure import measure
from tensordiff.compare.verdict import Verdict
from tensordiff.dump.model import Spec, entry
from tensordiff.dump.writer import DumpWriter
from tensordiff.session import Request
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.listing import Batch, Gain, Listing, Order, Pattern
from tensordiff.tui.widgets.job_line import JobLine
from tensordiff.tui.widgets.layer_table import LayerTable

SIZE = (160, 48)
COUNTS = (1_000, 10_000, 100_000)
MOST_FOR_DATATABLE = 10_000
_LAYERS_WITHIN = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
                  "mlp.up_proj", "mlp.act_fn", "mlp.down_proj", "mlp", "input_layernorm")  # fmt: skip


_NET = """
import torch

def net():
    return torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20))), {"input": torch.ones(8, 256)}
"""


class Nothing:
    """A tensor that nobody reads."""

    @property
    def spec(self) -> Spec:
        return Spec((4, 8), np.dtype("float32"))

    def read(self) -> Any:
        raise AssertionError("the table reads no tensor")


def rows_of(count: int) -> list[Row]:
    rng = np.random.default_rng(0)
    ref = rng.standard_normal((4, 8)).astype(np.float32)
    diff = measure(ref, ref + np.float32(1e-3))
    rows = []
    for k in range(count):
        name = f"layers.{k // 10}.{_LAYERS_WITHIN[k % 10]}"
        one = entry(name, Nothing())
        error = float(rng.random())
        verdict = Verdict("diverges" if k % 97 == 0 else "agrees", "measured")
        pair = Pair(k, name, one, one, "name")
        rows.append(Row(pair, ("float32", "float32"), (4, 8), (), diff._replace(rel_l2=error), None, None, verdict))
    return rows


class OurTable(App[None]):
    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self.rows = rows

    def compose(self) -> ComposeResult:
        yield LayerTable()

    def on_mount(self) -> None:
        listing = Listing.of([row.pair for row in self.rows])
        listing.put(Batch.of(0, self.rows, Gain()))
        self.query_one(LayerTable).show_listing(listing)

    def sort(self) -> None:
        self.query_one(LayerTable).sort_by("rel_l2")

    def filter(self) -> None:
        table = self.query_one(LayerTable)
        pattern = Pattern.parse("mlp")
        table.show_order(Order(only=table.listing.matching(pattern) if pattern else None))


class TheirTable(App[None]):
    def __init__(self, rows: list[Row]) -> None:
        super().__init__()
        self.rows = rows

    def compose(self) -> ComposeResult:
        yield DataTable()

    def _cells(self, row: Row) -> list[Text]:
        diff = row.diff
        assert diff is not None
        numbers = (diff.max_abs, diff.max_rel, diff.mse, diff.rel_l2, diff.cosine_distance)
        return [Text(row.pair.name), Text(str(row.shape)), *(Text(f"{number:.2e}") for number in numbers)]

    def on_mount(self) -> None:
        table: DataTable[Text] = self.query_one(DataTable)
        for name in ("layer", "shape", "max_abs", "max_rel", "mse", "rel_l2", "cosine"):
            table.add_column(name, key=name)
        self._fill(self.rows)

    def _fill(self, rows: list[Row]) -> None:
        self.query_one(DataTable).add_rows(self._cells(row) for row in rows)

    def sort(self) -> None:
        self.query_one(DataTable).sort("rel_l2", key=lambda cell: float(cell.plain), reverse=True)

    def filter(self) -> None:
        self.query_one(DataTable).clear()
        self._fill([row for row in self.rows if "mlp" in row.pair.name])


async def _painted(pilot: Pilot[Any], do: Callable[[], object]) -> float:
    begun = time.perf_counter()
    do()
    await pilot.pause()
    return time.perf_counter() - begun


async def times(app: OurTable | TheirTable) -> tuple[float, float, float]:
    """Ready, sort, filter."""
    begun = time.perf_counter()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        ready = time.perf_counter() - begun
        return ready, await _painted(pilot, app.sort), await _painted(pilot, app.filter)


async def table_rows(repeats: int = 3) -> list[list[str]]:
    """One line a count: ours, theirs, and how many times faster."""
    found = []
    for count in COUNTS:
        rows = rows_of(count)
        ours = [await times(OurTable(rows)) for _ in range(repeats)]
        theirs = [await times(TheirTable(rows)) for _ in range(repeats)] if count <= MOST_FOR_DATATABLE else []
        for what, mine, other in zip(("ready", "sort", "filter"), _best(ours), _best(theirs), strict=True):
            ratio = f"{other / mine:.0f}×" if other else "-"
            found.append([f"{count:,}", what, f"{mine:.3f} s", f"{other:.2f} s" if other else "not tried", ratio])
    return found


def _best(some: list[tuple[float, float, float]]) -> tuple[float, ...]:
    return tuple(min(column) for column in zip(*some, strict=True)) if some else (0.0, 0.0, 0.0)


async def _heartbeat(longest: list[float]) -> None:
    """Note how long the loop stood still."""
    while True:
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        longest.append(time.perf_counter() - before - 0.001)


async def stall(folder: Path, pairs: int = 2_000) -> tuple[float, float, float, float]:
    """Until painted, until all is measured, the longest stall on the way, and that of an idle loop, in seconds."""
    rng = np.random.default_rng(0)
    for side in ("reference", "candidate"):
        with DumpWriter(folder / side, {}) as writer:
            for k in range(pairs):
                writer.add(f"layers.{k // 10}.{_LAYERS_WITHIN[k % 10]}", rng.standard_normal((16, 256)).astype("f4"))
    app = TensordiffApp(Request(folder / "reference", folder / "candidate"), keeps=False)
    begun, longest = time.perf_counter(), [0.0]
    async with app.run_test(size=SIZE):
        painted = time.perf_counter() - begun
        beat = asyncio.create_task(_heartbeat(longest))
        await _measured(app)
        beat.cancel()
        whole = time.perf_counter() - begun
    return painted, whole, max(longest), await _idle_stall(whole)


async def capture_stall(folder: Path) -> float:
    """The longest stall while a child imports torch and runs a model, shown by the job line."""
    (folder / "net.py").write_text(_NET)
    source = parse_source(f"py:{folder / 'net.py'}:net")
    assert source is not None
    reference = Path(Run(Job(source, CaptureSettings(), str(folder / "net"))).result().path)
    app, longest = TensordiffApp(Request(reference, reference), keeps=False), [0.0]
    async with app.run_test(size=SIZE):
        await _measured(app)
        job = app.screen.query_one(JobLine)
        job.start(Run(Job(source, CaptureSettings(), str(folder / "again"))), "capture", "capture")
        beat = asyncio.create_task(_heartbeat(longest))
        while job.run is not None:
            await asyncio.sleep(0.01)
        beat.cancel()
    return max(longest)


async def _idle_stall(seconds: float) -> float:
    """The same for a loop that has nothing to do: what the machine itself adds."""
    longest = [0.0]
    beat = asyncio.create_task(_heartbeat(longest))
    await asyncio.sleep(seconds)
    beat.cancel()
    return max(longest)


async def _measured(app: TensordiffApp) -> None:
    while True:
        tables = list(app.screen.query(LayerTable))
        if tables and len(tables[0].listing) and tables[0].listing.measured == len(tables[0].listing):
            return
        await asyncio.sleep(0.01)


def run(measure_one: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await measure_one()

    return asyncio.run(main())


def stall_rows() -> list[list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        captured = run(lambda: capture_stall(Path(folder)))
        painted, whole, worst, idle = run(lambda: stall(Path(folder)))
    return [
        ["first paint, headless", f"{painted:.2f} s", "0.5 s"],
        ["2,000 pairs opened and measured", f"{whole:.2f} s", "-"],
        ["longest stall of the event loop meanwhile", f"{1000 * worst:.0f} ms", "50 ms"],
        ["longest stall while a child captures", f"{1000 * captured:.0f} ms", "50 ms"],
        ["longest stall of an idle loop as long", f"{1000 * idle:.0f} ms", "-"],
    ]


def main() -> None:
    print("| rows | what | tensordiff | DataTable | ratio |\n|---|---|---|---|---|")
    for line in run(table_rows):
        print("| " + " | ".join(line) + " |", flush=True)
    print("\n| what | measured | limit we hold |\n|---|---|---|")
    for line in stall_rows():
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
