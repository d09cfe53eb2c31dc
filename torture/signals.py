"""Signals at random moments of every command, and of the app on a terminal.

However a command is ended, it says so and not where: no traceback. Its status is the one for the signal, or its own
where it was done already. What it writes is there whole, as it was, or not at all; nothing that it started is left,
and nothing temporary; and a terminal is given back as it was.
"""

from __future__ import annotations

import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from torture.commands import COMMANDS, Command, has_torch, make_samples
from torture.outputs import is_defect, of_file, of_folder
from torture.part import Check
from torture.processes import Case, catches, started, waited
from torture.terminal import Terminal

_SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 143}
_END_S = 40.0
_OLD = b"# old\n"


@contextmanager
def opened(folder: Path) -> Iterator[Check]:
    """Make what the commands are run on; each case has a folder of its own."""
    samples = folder / "samples"
    samples.mkdir()
    make_samples(samples)
    commands = [command for command in COMMANDS if has_torch() or not command.needs_torch]
    numbers = count()

    def check(rng: random.Random) -> list[str]:
        case = Case(folder / f"case-{next(numbers)}")
        try:
            if rng.random() < 0.25:
                return [f"the app: {wrong}" for wrong in _check_app(rng, case, samples)]
            command = rng.choice(commands)
            return [f"{command.name}: {wrong}" for wrong in _check_command(rng, command, case, samples)]
        finally:
            case.end()

    yield check


def _moment(rng: random.Random) -> float:
    """How long to wait: most often while things begin."""
    return rng.choice((rng.uniform(0, 0.8), rng.uniform(0.5, 3), rng.uniform(0, 12)))


# --- commands -------------------------------------------------------------------------------------


def _check_command(rng: random.Random, command: Command, case: Case, samples: Path) -> Iterator[str]:
    before = {name: _OLD if command.replaces and rng.random() < 0.5 else None for name in command.writes}
    for name, content in before.items():
        if content is not None:
            (case.out / name).write_bytes(content)
    out, err = (case.folder / "stdout").open("wb"), (case.folder / "stderr").open("wb")
    how = rng.choice((*_SIGNALS, *_SIGNALS, *(() if not command.ends else (None,))))
    with out, err:
        if how is None:
            yield from _with_broken_pipe(rng, command, case, samples, err)
        else:
            yield from _with_signal(rng, command, case, samples, how, out, err)
    for name, content in before.items():
        yield from of_file(case.out / name, content)
    for name in command.folders:
        yield from of_folder(case.out / name)
    yield from case.leftovers()


def _with_signal(
    rng: random.Random, command: Command, case: Case, samples: Path, number: int, out: object, err: object
) -> Iterator[str]:
    streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
    with started(command.line(case.out), case, samples, streams) as process:
        moment = _moment(rng)
        is_done = waited(lambda: process.poll() is not None, moment)
        is_early = not is_done and not catches(process.pid, signal.SIGTERM)
        if not is_done:
            process.send_signal(number)
        if not waited(lambda: process.poll() is not None, _END_S):
            yield f"did not end within {_END_S:.0f} s of signal {number}, sent after {moment:.2f} s"
            return
        status = process.returncode
    sent = f"signal {number} after {moment:.2f} s"
    allowed = {*command.statuses} if is_done else {*command.statuses, _SIGNALS[signal.Signals(number)]}
    if status not in allowed | ({-number, 130, 1} if is_early else set()):
        yield f"{sent}: ended with {status}"
    yield from () if is_early else _of_errors(case, sent)


def _with_broken_pipe(rng: random.Random, command: Command, case: Case, samples: Path, err: object) -> Iterator[str]:
    """Whoever read its output has had enough."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": err}
    with started(command.line(case.out), case, samples, streams) as process:
        assert process.stdout is not None  # noqa: S101 - it was asked for
        process.stdout.read(rng.choice((0, 0, 1, 100, 5000)))
        process.stdout.close()
        if not waited(lambda: process.poll() is not None, 3 * _END_S):
            yield "did not end after its output was closed"
            return
    if process.returncode not in (*command.statuses, 2):
        yield f"ended with {process.returncode} after its output was closed"
    yield from _of_errors(case, "a closed pipe")


def _of_errors(case: Case, sent: str) -> Iterator[str]:
    said = (case.folder / "stderr").read_text("utf-8", "replace")
    if is_defect(said):
        yield f"{sent}: said {said[-600:]!r}"


# --- the app --------------------------------------------------------------------------------------


def _check_app(rng: random.Random, case: Case, samples: Path) -> Iterator[str]:
    """The app is opened, and then closed by a signal, or by a key after its window changed."""
    words = [*COMMANDS[0].line(case.out)[:3], "ref.safetensors", "cand.safetensors"]
    terminal = Terminal(rng.randint(20, 200), rng.randint(5, 60))
    how = rng.choice((signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH, None))
    moment = _moment(rng)
    try:
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
        with started(words, case, samples, streams, terminal=terminal.slave) as process:
            terminal.read_for(moment, process)
            is_early = process.poll() is None and not catches(process.pid, signal.SIGTERM)
            yield from _attack_app(rng, terminal, process, how)
            if not terminal.read_until_ended(process, _END_S):
                yield f"did not end within {_END_S:.0f} s ({how!r} after {moment:.2f} s)"
                return
        yield from () if is_early else _of_terminal(terminal, process.returncode, how, moment)
        yield from case.leftovers()
    finally:
        terminal.close()


def _attack_app(
    rng: random.Random, terminal: Terminal, process: subprocess.Popen[bytes], how: signal.Signals | None
) -> Iterator[str]:
    if how is None:  # the terminal itself goes away
        terminal.hang_up()
        return
    if how is not signal.SIGWINCH:
        process.send_signal(how)
        return
    for _ in range(rng.randint(1, 8)):
        terminal.resize(rng.choice((1, 2, 20, 80, 300)), rng.choice((1, 2, 10, 24, 90)))
        process.send_signal(signal.SIGWINCH)
        terminal.read_for(rng.uniform(0, 0.3), process)
    if process.poll() is not None:
        yield f"ended with {process.returncode} when its window changed"
    terminal.read_for(3.0, process)
    process.send_signal(signal.SIGTERM)


def _of_terminal(terminal: Terminal, status: int, how: signal.Signals | None, moment: float) -> Iterator[str]:
    sent = f"{'hang-up' if how is None else how.name} after {moment:.2f} s"
    expected = {signal.SIGINT: (130,)}.get(how, (143,)) if how is not None else (143, 129, 130, -1, 1, 2, 0)
    if status not in expected:
        yield f"{sent}: ended with {status}: {terminal.text[-300:]!r}"
    if how is None:
        return  # nobody can see what it wrote, or what modes it left
    if b"Traceback" in terminal.seen:
        yield f"{sent}: {terminal.text[-600:]!r}"
    if wrong := terminal.why_not_restored():
        yield f"{sent}: {wrong}"
