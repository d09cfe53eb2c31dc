"""Disks that are full, and folders that cannot be written, for every command that writes.

A command that cannot write what it was asked to write says so in one sentence and ends with 2: never with the status of
a verdict. What it had written is whole or not there. Where only its temporary folder or the user's own state cannot be
written, it does its work, or says why not. The disks are mounts in a namespace of the command's own.
"""

from __future__ import annotations

import random
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from torture.commands import COMMANDS, Command, has_torch, make_samples
from torture.outputs import is_defect, of_file, of_folder
from torture.part import Check, Skipped
from torture.processes import Case, started, waited

_NAMESPACE = ("unshare", "--map-root-user", "--mount")
_END_S = 240.0
_OLD = b"# old\n"
_READ_ONLY = "read-only"
_SIZES = (_READ_ONLY, "4k", "16k", "64k", "256k", "1m", "4m", "16m")
"""Of a disk; tmpfs counts in pages, and every file and folder takes one."""
_OF_USERS = ("state", "config", "cache")
_PLACES = ("out", "out", "out", "tmp", "home")
"""Where it is full: where the command writes, in its temporary folder, or where the user's own files are."""


@contextmanager
def opened(folder: Path) -> Iterator[Check]:
    """Make what the commands are run on; each case has a folder of its own."""
    _check_mounts()
    samples = folder / "samples"
    samples.mkdir()
    make_samples(samples)
    usable = [command for command in COMMANDS if command.ends and (has_torch() or not command.needs_torch)]
    writers = [command for command in usable if command.writes or command.folders]
    numbers = count()

    def check(rng: random.Random) -> list[str]:
        case = Case(folder / f"case-{next(numbers)}")
        place, size = rng.choice(_PLACES), rng.choice(_SIZES)
        command = rng.choice(writers if place == "out" else usable)
        try:
            found = _check(rng, command, case, samples, place, size)
            return [f"{command.name}, {place} {size}: {wrong}" for wrong in found]
        finally:
            case.end()

    yield check


def _check_mounts() -> None:
    words = [*_NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        done = subprocess.run(words, capture_output=True, timeout=60, check=False)  # noqa: S603 - our own words
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Skipped(f"mounts cannot be made here ({error})") from error
    if done.returncode:
        raise Skipped(f"mounts cannot be made here ({done.stderr.decode('utf-8', 'replace').strip()})")


def _check(rng: random.Random, command: Command, case: Case, samples: Path, place: str, size: str) -> Iterator[str]:
    before = {name: _OLD if command.replaces and rng.random() < 0.5 else None for name in command.writes}
    kept, home = case.folder / "kept", case.folder / "home"
    for folder in (kept, home):
        folder.mkdir()
    at = {"out": case.out, "tmp": case.temporary, "home": home}[place]
    script = _script(command, case, at, kept, size, {name: old for name, old in before.items() if old is not None})
    with (case.folder / "stdout").open("wb") as out, (case.folder / "stderr").open("wb") as err:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        words = [*_NAMESPACE, "sh", "-c", script]
        with started(words, case, samples, streams) as process:
            if not waited(lambda: process.poll() is not None, _END_S):
                yield f"did not end within {_END_S:.0f} s"
                return
    yield from _of_status(command, case, place, process.returncode, kept)
    for name, content in before.items():
        yield from of_file(kept / name, content)
    for name in command.folders:
        yield from of_folder(kept / name)
    if left := sorted(path.name for path in kept.rglob(".tensordiff-*")):
        yield f"left beside its output: {', '.join(left)}"


def _script(command: Command, case: Case, at: Path, kept: Path, size: str, old: dict[str, bytes]) -> str:
    """Mount, run the command, and keep what it wrote: the mount goes with the namespace."""
    where, out = shlex.quote(str(at)), shlex.quote(str(case.out))
    home = shlex.quote(str(case.folder / "home"))
    lines = [f"export HOME={home}", *(f"export XDG_{name.upper()}_HOME={home}/{name}" for name in _OF_USERS)]
    olds = [f"printf '# old\\n' > {out}/{shlex.quote(name)} || exit 99" for name in old]
    if size == _READ_ONLY:
        lines += [*olds, f"mount --bind {where} {where}", f"mount -o remount,bind,ro {where}"]
    else:
        lines += [f"mount -t tmpfs -o size={size} tmpfs {where}", *olds]
    lines += [shlex.join(command.line(case.out)), "status=$?"]
    return "\n".join([*lines, f"cp -a {out}/. {shlex.quote(str(kept))}/", "exit $status"])


def _of_status(command: Command, case: Case, place: str, status: int, kept: Path) -> Iterator[str]:
    said = (case.folder / "stderr").read_text("utf-8", "replace")
    if is_defect(said):
        yield f"said {said[-900:]!r}"
    if status not in (*command.statuses, 2):
        yield f"ended with {status}: {said[-300:]!r}"
    if status == 2 and not said.strip():
        yield "ended with 2 and said nothing"
    if status != 2 and place == "out":
        for name in command.writes:
            path = kept / name
            if not path.exists() or (path.read_bytes() == _OLD and not command.edits):
                yield f"ended with {status}, and {name} was not written"
    if status == 2 and place == "home" and 2 not in command.statuses:
        yield f"does not work where the user's own folders cannot be written: {said[-300:]!r}"
