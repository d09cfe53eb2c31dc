"""The application's table against Textual's own ``DataTable``; its first frame, and how long its loop stands still.

Both tables are filled with the same rows in the same process, headless at 160×48, taking turns. *Ready* is from
nothing to painted; *sort* and *filter* from the call to painted. The first frame is that of a process of its own, on
a terminal. A stall is the longest time between two turns of the event loop while something is done with a comparison
of real files, in the app as people use it. ``python -m benchmarks.app`` prints it all.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import tempfile
import termios
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
from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings as CaptureSettings
from tensordiff.compare.judge.verdict import Verdict
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row
from tensordiff.dump.model import Spec, entry
from tensordiff.dump.writer import DumpWriter
from tensordiff.session.request import Request
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.jobs.job_line import JobLine
from tensordiff.tui.launch import Launch
from tensordiff.tui.table.model import Batch, Listing, Order, Pattern
from tensordiff.tui.table.table import LayerTable

SIZE = (160, 48)
COUNTS = (1_000, 10_000, 100_000)
MOST_FOR_DATATABLE = 10_000
_BEAT_S, _PAUSE_S, _IDLE_S, _FRAMES = 0.001, 0.5, 10, 7
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
        listing.put(Batch.of(0, self.rows))
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


class Heart:
    """How long the event loop stood still, at most, since it was asked last."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.beating = asyncio.create_task(self._beat())

    async def _beat(self) -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_BEAT_S)
            self.longest = max(self.longest, time.perf_counter() - before - _BEAT_S)

    def told(self) -> float:
        longest, self.longest = self.longest, 0.0
        return longest


def write_dumps(folder: Path, pairs: int, shape: tuple[int, int]) -> Request:
    """Two dumps that differ a little, and much in one of a hundred."""
    for side, error in (("reference", 0.0), ("candidate", 1e-7)):
        rng = np.random.default_rng(0)
        with DumpWriter(folder / side, {}) as writer:
            for k in range(pairs):
                array = rng.standard_normal(shape) + (1e-2 if error and k % 97 == 50 else error)
                writer.add(f"layers.{k // 10}.{_LAYERS_WITHIN[k % 10]}", array.astype("f4"))
    return Request(folder / "reference", folder / "candidate")


async def stalls(request: Request) -> dict[str, float]:
    """The longest stall while each thing is done, and how long all of them took, in seconds."""
    wanted = Launch(request.reference, request.candidate, lambda: request)
    app, found, begun = TensordiffApp(wanted, saves_state=False), {}, time.perf_counter()
    async with app.run_test(size=SIZE):
        heart = Heart()
        await _measured(app)
        found["seconds"] = time.perf_counter() - begun
        found["opened and measured"] = heart.told()
        for what, do in _DOINGS.items():
            await asyncio.sleep(_PAUSE_S)
            heart.told()
            await do(app)
            await asyncio.sleep(_PAUSE_S)
            found[what] = heart.told()
        heart.beating.cancel()
    return found


async def _sort(app: TensordiffApp) -> None:
    for _ in range(6):
        app.simulate_key("s")
        await asyncio.sleep(_PAUSE_S / 2)
    app.simulate_key("0")


async def _filter(app: TensordiffApp) -> None:
    for key in ("slash", *"mlp", "escape"):
        app.simulate_key(key)
        await asyncio.sleep(_PAUSE_S / 2)


async def _realign(app: TensordiffApp) -> None:
    """Show the rules, and switch the first of them off and on again."""
    for key in ("m", "space", "space"):
        app.simulate_key(key)
        await asyncio.sleep(_PAUSE_S)
        while any(worker.group in ("align", "open") and worker.is_running for worker in app.workers):
            await asyncio.sleep(_PAUSE_S / 10)
        await _measured(app)


_DOINGS = {"sorted by six columns": _sort, "filtered": _filter, "aligned anew twice, and measured": _realign}


def first_frame(request: Request) -> float:
    """From exec to the first frame on a terminal, headings and keys in it."""
    begun = time.perf_counter()
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        command = [sys.executable, "-m", "tensordiff", str(request.reference), str(request.candidate)]
        os.execv(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", SIZE[1], SIZE[0], 0, 0))
    seen = b""
    while not all(text in seen for text in (b"layer", b"rel_l2", b"help", b"opening")):
        seen += os.read(terminal, 1 << 16)
    took = time.perf_counter() - begun
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(terminal)
    return took


async def capture_stall(folder: Path) -> float:
    """The longest stall while a child imports torch and runs a model, shown by the job line."""
    (folder / "net.py").write_text(_NET)
    source = parse_source(f"py:{folder / 'net.py'}:net")
    assert source is not None
    reference = Path(Run(Job(source, CaptureSettings(), str(folder / "net"))).result().path)
    app = TensordiffApp(Request(reference, reference), saves_state=False)
    async with app.run_test(size=SIZE):
        await _measured(app)
        job = app.screen.query_one(JobLine)
        job.start(Run(Job(source, CaptureSettings(), str(folder / "again"))), "capture", "capture")
        heart = Heart()
        while job.run is not None:
            await asyncio.sleep(0.01)
        heart.beating.cancel()
        return heart.told()


async def idle_stall() -> float:
    """The same for a loop that has nothing to do: what the machine itself adds."""
    heart = Heart()
    await asyncio.sleep(_IDLE_S)
    heart.beating.cancel()
    return heart.told()


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


def compared_rows() -> list[list[str]]:
    """The table beside Textual's own."""
    found: list[list[str]] = run(table_rows)
    return found


def stall_rows() -> list[list[str]]:
    """First paint and stalls, each with what it must not exceed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        captured = run(lambda: capture_stall(folder))
        lines: list[list[str]] = []
        for pairs, shape in ((2_000, (16, 256)), (10_000, (4, 8)), (100_000, (4, 8))):
            request = write_dumps(folder / str(pairs), pairs, shape)
            found = run(lambda request=request: stalls(request))
            lines.append([f"{pairs:,} pairs opened and measured", f"{found.pop('seconds'):.2f} s", "-"])
            lines += [[f"longest stall: {pairs:,} pairs {what}", _ms(took), "50 ms"] for what, took in found.items()]
        frames = sorted(first_frame(request) for _ in range(_FRAMES))
    painted = f"{frames[_FRAMES // 2]:.2f} s ({frames[0]:.2f} to {frames[-1]:.2f})"
    return [
        ["from exec to the first frame, 100,000 pairs", painted, "0.5 s"],
        *lines,
        ["longest stall: a child captures", _ms(captured), "50 ms"],
        [f"longest stall: an idle loop, for {_IDLE_S} s", _ms(run(idle_stall)), "-"],
    ]


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms"


def main() -> None:
    print("| rows | what | tensordiff | DataTable | ratio |\n|---|---|---|---|---|")
    for line in compared_rows():
        print("| " + " | ".join(line) + " |", flush=True)
    print("\n| what | measured | limit we hold |\n|---|---|---|")
    for line in stall_rows():
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
