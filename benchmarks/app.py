"""The application's table against Textual's own ``DataTable``; its first frame, and how long its loop stands still.

Both tables are filled with the same rows in the same process, headless at 160×48, taking turns. *Ready* is from
nothing to painted; *sort* and *filter* from the call to painted. The first frame is that of a process of its own, on
a terminal. A stall is the longest time between two turns of the event loop while something is done with a comparison
of real files, in the app as people use it; beside the clock stands what this process used of the processor in such a
time, which others on the machine disturb less, and which thread kept the others from running for longest. In the same
app keys are timed, from the key to the repaint (``key_times``).

``python -m benchmarks.app`` prints it all. ``--pairs 1000000`` measures first frame, keys and stalls of that size
alone, which takes a quarter of an hour or more; ``--dumps DIR`` keeps its dumps there for another time.
"""

from __future__ import annotations

import argparse
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
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
from rich.text import Text
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widgets import DataTable

from benchmarks.key_times import KeyTimes, PaintedApp, key_times, keys_while_measured, told
from tensordiff.align.match import Pair
from tensordiff.capture.job import Job, parse_source
from tensordiff.capture.runner import Run
from tensordiff.capture.settings import Settings as CaptureSettings
from tensordiff.compare.judge.verdict import Verdict
from tensordiff.compare.measure.dispatch import measure
from tensordiff.compare.row import Row
from tensordiff.dump.model import Spec, entry
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.session.request import Request
from tensordiff.tui.app import TensordiffApp
from tensordiff.tui.comparison.screen import ComparisonScreen
from tensordiff.tui.comparison.session_owner import SessionOwner
from tensordiff.tui.jobs.job_line import JobLine, Purpose
from tensordiff.tui.launch import Launch
from tensordiff.tui.table.model import Batch, Listing, Order, Pattern
from tensordiff.tui.table.table import LayerTable

SIZE = (160, 48)
COUNTS = (1_000, 10_000, 100_000)
MOST_FOR_DATATABLE = 10_000
_BEAT_S, _PAUSE_S, _IDLE_S, _FRAMES = 0.001, 0.5, 10, 7
_WATCH_S, _HELD_S = 0.002, 0.01
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


class Stall(NamedTuple):
    """How long the event loop stood still, at most."""

    clock_s: float = 0.0
    process_s: float = 0.0
    """What all threads of this process used of the processor meanwhile; of another such time where that was longer."""
    usual_process_s: float = 0.0
    """The same of ninety-nine turns in a hundred."""
    loop_s: float = 0.0
    """What the loop's own thread used of the processor in a turn, at most."""
    held_s: float = 0.0
    """The processor's time of the thread that kept all others from running for longest."""
    holder: str = ""
    """What it was at."""


class Heart:
    """How long the event loop stood still, at most, since it was asked last, and who kept it from running."""

    def __init__(self) -> None:
        self._clock_s, self._process_s, self._loop_s = array("d"), array("d"), array("d")
        self._held: tuple[float, str] = (0.0, "")
        self.beating = asyncio.create_task(self._beat())
        Thread(target=self._watch, daemon=True).start()

    async def _beat(self) -> None:
        while True:
            before, used, own = time.perf_counter(), time.process_time(), time.thread_time()
            await asyncio.sleep(_BEAT_S)
            self._clock_s.append(time.perf_counter() - before - _BEAT_S)
            self._process_s.append(time.process_time() - used)
            self._loop_s.append(time.thread_time() - own)

    def _watch(self) -> None:
        """In a thread, which sleeps and wakes: where it wakes late, some other thread did not let it run.

        Python lets others run after a call that took long, so that call is where the other thread still stands.
        """
        while not self.beating.done():
            before = {thread: _processor_s(thread) for thread in sys._current_frames()}
            asleep = time.perf_counter()
            time.sleep(_WATCH_S)
            if time.perf_counter() - asleep > _HELD_S:
                frames = sys._current_frames()
                used = {thread: _processor_s(thread) - before[thread] for thread in before if thread in frames}
                longest = max(used, key=used.__getitem__)
                if used[longest] > self._held[0]:
                    self._held = used[longest], _place(frames[longest])

    def told(self) -> Stall:
        process = np.sort(self._process_s) if self._process_s else np.zeros(1)
        clock_s, loop_s = max(self._clock_s, default=0.0), max(self._loop_s, default=0.0)
        longest = Stall(clock_s, float(process[-1]), float(process[99 * len(process) // 100]), loop_s, *self._held)
        self._clock_s, self._process_s, self._loop_s, self._held = array("d"), array("d"), array("d"), (0.0, "")
        return longest


def _processor_s(thread: int) -> float:
    """What a thread has used of the processor; it may be gone."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread))
    except OSError:
        return 0.0


def _place(frame: FrameType | None) -> str:
    """Where a thread is in this project, or where it is at all."""
    at = frame
    while at is not None and "/tensordiff/" not in at.f_code.co_filename:
        at = at.f_back
    found = at or frame
    assert found is not None
    return f"{Path(found.f_code.co_filename).name}:{found.f_lineno} {found.f_code.co_name}"


def write_dumps(folder: Path, pairs: int, shape: tuple[int, int]) -> Request:
    """Two dumps that differ a little, and much in one of a hundred."""
    for side, error in (("reference", 0.0), ("candidate", 1e-7)):
        rng = np.random.default_rng(0)
        with DumpWriter(folder / side, {}) as writer:
            for k in range(pairs):
                array = rng.standard_normal(shape) + (1e-2 if error and k % 97 == 50 else error)
                writer.add(f"layers.{k // 10}.{_LAYERS_WITHIN[k % 10]}", array.astype("f4"))
    return Request(folder / "reference", folder / "candidate")


class Measured(NamedTuple):
    """What was measured in one run of the app."""

    seconds: float
    """How long it took to open and measure."""
    stalls: dict[str, Stall]
    keys: KeyTimes


async def stalls(request: Request) -> Measured:
    """How long it took to open and measure, how long keys took, and the longest stall while each thing is done."""
    wanted = Launch(request.reference, request.candidate, lambda: request)
    app, found, begun = PaintedApp(wanted, saves_state=False), {}, time.perf_counter()
    async with app.run_test(size=SIZE):
        heart = Heart()
        await _listed(app)
        found["opened"] = heart.told()
        await keys_while_measured(app)
        await _measured(app)
        seconds = time.perf_counter() - begun
        found["measured"] = heart.told()
        print({what: _ms(took) for what, took in found.items()}, f"{seconds:.1f} s", file=sys.stderr, flush=True)
        heart.beating.cancel()  # it would take its share of the keys' time
        keys = await key_times(app)
        print({what: told(times) for what, times in keys.items()}, file=sys.stderr, flush=True)
        heart = Heart()
        for what, do in _DOINGS.items():
            await asyncio.sleep(_PAUSE_S)
            heart.told()
            await do(app)
            await asyncio.sleep(_PAUSE_S)
            found[what] = heart.told()
            print(what, _ms(found[what]), file=sys.stderr, flush=True)  # of a large size the rest takes minutes
        heart.beating.cancel()
    return Measured(seconds, found, keys)


async def _sort(app: TensordiffApp) -> None:
    for _ in range(6):
        app.simulate_key("s")
        await asyncio.sleep(_PAUSE_S / 2)
    app.simulate_key("0")


async def _filter(app: TensordiffApp) -> None:
    for key in ("slash", *"mlp", "escape"):
        app.simulate_key(key)
        await asyncio.sleep(_PAUSE_S / 2)


async def _go_to(app: TensordiffApp) -> None:
    """Open the list of layers, type into it, and leave."""
    for key in ("l", *"mlp 1", "escape"):
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


_DOINGS = {
    "sorted by six columns": _sort,
    "filtered": _filter,
    "gone to by name": _go_to,
    "aligned anew twice, and measured": _realign,
}


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


async def capture_stall(folder: Path) -> Stall:
    """The longest stall while a child imports torch and runs a model, shown by the job line."""
    (folder / "net.py").write_text(_NET)
    source = parse_source(f"py:{folder / 'net.py'}:net")
    assert source is not None
    reference = Path(Run(Job(source, CaptureSettings(), str(folder / "net"))).result().path)
    app = TensordiffApp(Request(reference, reference), saves_state=False)
    async with app.run_test(size=SIZE):
        await _measured(app)
        job = app.screen.query_one(JobLine)
        job.start(Run(Job(source, CaptureSettings(), str(folder / "again"))), "capture", Purpose.CAPTURE)
        heart = Heart()
        while job.run is not None:
            await asyncio.sleep(0.01)
        heart.beating.cancel()
        return heart.told()


async def idle_stall() -> Stall:
    """The same for a loop that has nothing to do: what the machine itself adds."""
    heart = Heart()
    await asyncio.sleep(_IDLE_S)
    heart.beating.cancel()
    return heart.told()


async def _listed(app: TensordiffApp) -> None:
    while not any(len(table.listing) for table in app.screen.query(LayerTable)):
        await asyncio.sleep(0.01)


async def _measured(app: TensordiffApp) -> None:
    """Until all rows are there, and the result of them, without which no report is offered."""
    while not (isinstance(app.screen, ComparisonScreen) and _has_result(app.screen.owner)):
        await asyncio.sleep(0.01)


def _has_result(owner: SessionOwner) -> bool:
    return owner.outcome is not None and not owner.is_aligning


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
            lines += _stall_lines(pairs, request)
        frames = sorted(first_frame(request) for _ in range(_FRAMES))
    painted = f"{frames[_FRAMES // 2]:.2f} s ({frames[0]:.2f} to {frames[-1]:.2f})"
    return [
        ["from exec to the first frame, 100,000 pairs", painted, "0.5 s"],
        *lines,
        ["longest stall: a child captures", _ms(captured), "50 ms"],
        [f"longest stall: an idle loop, for {_IDLE_S} s", _ms(run(idle_stall)), "-"],
    ]


_KEY_GOALS = dict.fromkeys(
    ("sort", "filter: rows shown", "filter left", "goto: names shown", "tree shown", "search begun"), "-"
)
"""What is looked for in a thread may take longer: keys are answered meanwhile."""


def _stall_lines(pairs: int, request: Request) -> list[list[str]]:
    found: Measured = run(lambda: stalls(request))
    keys = [
        [f"longest key: {pairs:,} pairs, {what}", told(took), _KEY_GOALS.get(what, "50 ms")]
        for what, took in found.keys.items()
    ]
    waits = [[f"longest stall: {pairs:,} pairs {what}", _ms(took), "50 ms"] for what, took in found.stalls.items()]
    return [[f"{pairs:,} pairs opened and measured", f"{found.seconds:.2f} s", "-"], *keys, *waits]


def rows_of_size(pairs: int, folder: Path) -> list[list[str]]:
    """First frame and stalls of one size; dumps that lie in the folder already are taken."""
    if not (folder / "candidate").is_dir():
        write_dumps(folder, pairs, (4, 8))
    request = Request(folder / "reference", folder / "candidate")
    frames = sorted(first_frame(request) for _ in range(_FRAMES))
    painted = f"{frames[_FRAMES // 2]:.2f} s ({frames[0]:.2f} to {frames[-1]:.2f})"
    return [[f"from exec to the first frame, {pairs:,} pairs", painted, "0.5 s"], *_stall_lines(pairs, request)]


def _ms(stall: Stall) -> str:
    held = f"; {1000 * stall.held_s:.0f} ms in {stall.holder}" if stall.holder else ""
    usual = f"99 of 100 turns within {1000 * stall.usual_process_s:.1f}"
    took = f"{1000 * stall.process_s:.0f} ms of the processor, {1000 * stall.loop_s:.0f} of it the loop's at most"
    return f"{1000 * stall.clock_s:.0f} ms ({took}, {usual}{held})"


def main() -> None:
    parser = argparse.ArgumentParser(description="The app: tables, first frame, keys, stalls.")
    parser.add_argument("--pairs", type=int, help="first frame, keys and stalls of so many pairs alone")
    parser.add_argument("--dumps", type=Path, help="the folder of their dumps; they are written if it has none")
    asked, load = parser.parse_args(), os.getloadavg()[0]
    if asked.pairs is not None:
        with tempfile.TemporaryDirectory() as name:
            lines = rows_of_size(asked.pairs, asked.dumps or Path(name))
        print(f"load {load:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end")
        print("\n| what | measured | limit we hold |\n|---|---|---|")
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    print("| rows | what | tensordiff | DataTable | ratio |\n|---|---|---|---|---|")
    for line in compared_rows():
        print("| " + " | ".join(line) + " |", flush=True)
    print("\n| what | measured | limit we hold |\n|---|---|---|")
    for line in stall_rows():
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
