"""Damaged files, for every reader: dumps of every format, and rules, tolerances, sessions, suites, preferences, logs.

Whatever the bytes, a reader gives a result or one printable sentence. A command ends with a status of its own and no
defect. And no comparison of a dump with its mutant ends with status 0 where values that were paired are not the same
to within what their type explains. An input that nothing is paired with is left out: engines give their layers
different ones, and a verdict is of outputs.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from tensordiff.align.rules.file import RulesFile, read_rules_file
from tensordiff.capture.provenance import input_settings
from tensordiff.cli import streams
from tensordiff.cli.commands.verify_suite import read_suite
from tensordiff.cli.main import _exit_status
from tensordiff.compare.judge.verdict import floor_for
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Entry, EntryKey
from tensordiff.errors import TensordiffError
from tensordiff.report.change import read_comparison
from tensordiff.search.bisect import Bisect, ProbePoint
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.session.storage.preferences import read_preferences
from tensordiff.session.storage.state import SessionState, read_state, state_text
from tensordiff.session.storage.suite_record import read_record
from tensordiff.tui.start import read_recent
from tensordiff.weights.comparison import compare_weights
from torture import samples
from torture.mutation import mutated
from torture.part import Check
from torture.tool_samples import CHECKPOINTS, PLAIN_CHECKPOINTS

_COMMANDS = (
    ("inspect", "MUTANT"), ("inspect", "MUTANT", "--stats"), ("lint", "MUTANT"), ("lint", "ORIGINAL", "MUTANT"),
    ("compare", "ORIGINAL", "MUTANT"), ("compare", "MUTANT", "ORIGINAL", "--json"), ("align", "ORIGINAL", "MUTANT"),
    ("tolerances", "MUTANT", "ORIGINAL"), ("report", "ORIGINAL", "MUTANT"), ("bisect", "ORIGINAL", "MUTANT", "--auto"),
    ("weights", "ORIGINAL", "MUTANT"), ("weights", "MUTANT", "ORIGINAL", "--json"), ("convert", "MUTANT", "-o", "OUT"),
)  # fmt: skip
_TOUCH_BELOW = 1 << 24
_SLACK = 1.05  # sums are not the same in every order
Values = Mapping[EntryKey, Array]


class _Dump(NamedTuple):
    """A valid dump to be damaged."""

    name: str
    root: Path
    """A folder with nothing else in it."""
    inside: Path
    values: Values

    @property
    def path(self) -> Path:
        """The dump itself."""
        return self.root / self.inside


@contextmanager
def opened(folder: Path) -> Iterator[Check]:
    """Make every sample; the check damages one of them."""
    streams.prepare()
    dumps = {}
    for name in samples.DUMPS:
        with contextlib.suppress(ImportError):  # of torch, which the core does without
            root = folder / "original" / name
            inside = samples.make_dump(name, root)
            dumps[name] = _Dump(name, root, inside, _values(open_dump(root / inside))[0])
    texts = _texts(dumps["safetensors"].path, folder)
    others = [path.read_bytes() for path in sorted((folder / "original").rglob("*")) if path.is_file()]
    place = folder / "mutant"

    def check(rng: random.Random) -> list[str]:
        shutil.rmtree(place, ignore_errors=True)
        if rng.random() < 0.3:
            name, (content, read) = rng.choice(sorted(texts.items(), key=lambda item: item[0]))
            place.mkdir()
            return [f"{name}: {wrong}" for wrong in _check_text(rng, place / f"{name}.toml", content, read)]
        name = rng.choice(sorted(dumps))
        return [f"{name}: {wrong}" for wrong in _check_dump(rng, dumps[name], place, others)]

    yield check


# --- dumps ----------------------------------------------------------------------------------------


def _check_dump(rng: random.Random, original: _Dump, place: Path, others: list[bytes]) -> Iterator[str]:
    path = place / original.inside
    shutil.copytree(original.root, place)
    _damage(rng, place, others)
    try:
        values, unread = _values(open_dump(path))
    except TensordiffError as error:
        values, unread = {}, set()
        yield from _of_sentence(error)
    sides = (original.path, path) if rng.random() < 0.5 else (path, original.path)
    try:
        session = Session.open(Request(*sides))
        if session.outcome(session.rows()).exit_status == 0:
            left = {_key(entry) for entry in session.alignment.reference_orphans if entry.is_input}
            judged = {key: array for key, array in original.values.items() if key not in left}
            yield from _of_agreement(judged, values, unread, _partners(session, original.path))
    except TensordiffError as error:
        yield from _of_sentence(error)
    if original.name in CHECKPOINTS:
        yield from _check_weights(original, sides, values, unread)
    if rng.random() < 0.3:
        yield from _of_command(rng, original.path, path)


def _check_weights(original: _Dump, sides: tuple[Path, Path], values: Values, unread: set[EntryKey]) -> Iterator[str]:
    """The same as parameters; where a quantization explains differences, only how it ends."""
    try:
        outcome = compare_weights(open_dump(sides[0]), open_dump(sides[1]))
    except TensordiffError as error:
        yield from _of_sentence(error)
        return
    if outcome.exit_status == 0 and original.name in PLAIN_CHECKPOINTS:
        yield from (f"as weights {wrong}" for wrong in _of_agreement(original.values, values, unread))


def _damage(rng: random.Random, folder: Path, others: list[bytes]) -> None:
    """Damage one of its files; or do something to it that a file system can."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = rng.choice(files)
    if rng.random() < 0.85:
        path.write_bytes(mutated(rng, path.read_bytes(), others))
        return
    other = rng.choice(files)
    match rng.randrange(8):
        case 0:
            path.unlink()
        case 1:
            shutil.copy(path, path.with_name(f"x{path.name}"))
        case 2:
            path.write_bytes(other.read_bytes())
        case 3:
            path.unlink()
            path.mkdir()
        case 4:
            path.unlink()
            path.symlink_to(rng.choice((other.name, "nowhere", path.name, "/dev/zero", "/etc/passwd", "..")))
        case 5:
            path.unlink()
            os.mkfifo(path)
        case 6:
            path.rename(path.with_name(f"{path.stem}(2){path.suffix}"))
        case _:
            path.write_bytes(b"")


def _key(entry: Entry) -> EntryKey:
    return EntryKey(entry.name, entry.step, entry.call)


def _values(dump: Dump) -> tuple[dict[EntryKey, Array], set[EntryKey]]:
    """Every value of a dump, and what could not be read; an array must be what its spec said."""
    values, unread = {}, set()
    for entry in dump.entries:
        key = _key(entry)
        try:
            spec, array = entry.spec, entry.read()
        except TensordiffError as error:
            unread.add(key)
            if wrong := list(_of_sentence(error)):
                raise AssertionError(wrong[0]) from error
            continue
        if (array.shape, array.dtype) != (spec.shape, spec.dtype):
            raise AssertionError(f"{key} is {array.shape} {array.dtype}, and said to be {spec}")
        if array.nbytes < _TOUCH_BELOW:
            values[key] = np.array(array)
    input_settings(dump)
    return values, unread


def _partners(session: Session, original: Path) -> dict[EntryKey, EntryKey]:
    """What each tensor of the original was compared with: where damage made a name another, values pair it."""
    is_reference = session.reference.path == original
    pairs = ((pair.reference, pair.candidate) for pair in session.alignment.pairs)
    sides = (pair if is_reference else pair[::-1] for pair in pairs)
    return {_key(ours): _key(theirs) for ours, theirs in sides}


def _of_agreement(
    ours: Values, theirs: Values, unread: set[EntryKey], partners: Mapping[EntryKey, EntryKey] = MappingProxyType({})
) -> Iterator[str]:
    """What may not be where a comparison said that the two agree, or drift and no more."""
    answered = set(partners.values())
    for key, ref in ours.items():
        if key not in partners and key in answered:
            continue  # what has its name was proven to be another tensor, and this one is told as not paired
        partner = partners.get(key, key)
        if partner in unread:
            yield f"agrees, although {partner.name} cannot be read"
        elif partner in theirs and (off := _distance(ref, theirs[partner])):
            yield f"agrees, although {key.name} is off: {off}"
        elif partner in ours and key in theirs and _distance(ref, theirs[key]) and _distance(ref, ours[partner]):
            yield f"agrees, although {key.name} and {partner.name} were exchanged"


def _distance(ref: Array, cand: Array) -> str:
    """How far two arrays are apart beyond what their types explain; nothing where they are not."""
    if ref.size != cand.size:
        return f"{ref.shape} against {cand.shape}"
    r, c = ref.reshape(-1).astype(np.float64), cand.reshape(-1).astype(np.float64)
    with np.errstate(all="ignore"):
        apart = ~((r == c) | (np.isnan(r) & np.isnan(c)))
        d, size = np.where(apart, c - r, 0).astype(np.longdouble), np.linalg.norm(r[np.isfinite(r)])
        off = float(np.sqrt((d * d).sum()) / size) if size else float(np.abs(d).max())
    allowed = floor_for(ref.dtype.name, cand.dtype.name)[1].diverges * _SLACK
    return "" if off <= allowed else f"rel_l2 {off:.2g}, {ref.dtype} against {cand.dtype}"


def _of_sentence(error: TensordiffError) -> Iterator[str]:
    """A failure is one printable line, neither empty nor a page."""
    text = str(error)
    if not text.isprintable() or not 10 < len(text) < 4000:
        yield f"not one sentence: {text!r:.300}"


def _of_command(rng: random.Random, original: Path, mutant: Path) -> Iterator[str]:
    """A command must end as commands do."""
    with tempfile.TemporaryDirectory() as folder:
        places = {"ORIGINAL": str(original), "MUTANT": str(mutant), "OUT": f"{folder}/out"}
        yield from _of_words([places.get(word, word) for word in rng.choice(_COMMANDS)])


def _of_words(words: list[str]) -> Iterator[str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = _exit_status(words, debug=False)
    said = err.getvalue()
    if status not in (0, 1, 2) or "a defect of tensordiff" in said:
        yield f"{words[0]} ended with {status}: {said[-300:]!r}"
    if not all(line.isprintable() for line in (out.getvalue() + said).split("\n")):
        yield f"{words[0]} printed what a terminal would obey"


# --- files of text --------------------------------------------------------------------------------


def _texts(dump: Path, folder: Path) -> dict[str, tuple[bytes, Callable[[Path], object]]]:
    """The content of each kind of file, and what reads it."""
    nothing = Request(Path(), Path())
    search = Bisect(tuple(ProbePoint(k, f"layers.{k}.mlp") for k in range(4)))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        _exit_status(["compare", str(dump), str(dump), "--json"], debug=False)
    state = state_text(SessionState(rules=read_rules_file(_written(folder / "rules.toml", samples.RULES))))
    result = {"name": "a", "verdict": "agrees", "culprit": None, "rel_l2": "-", "pairs": 1, "sentence": "x"}
    record = json.dumps({"result": result, "depends": {}, "loaded": {"/a": [["b"], "c"]}, "written": {}})
    return {
        "rules": (samples.RULES.encode(), read_rules_file),
        "tolerances": (
            samples.TOLERANCES.encode(),
            lambda path: Request(Path(), Path(), tolerances=path).limits_with(RulesFile()),
        ),
        "session": (state.encode(), read_state),
        "suite": (samples.SUITE.encode(), lambda path: read_suite(path, nothing)),
        "preferences": (samples.PREFERENCES.encode(), read_preferences),
        "comparison": (out.getvalue().encode(), read_comparison),
        "bisect": (samples.BISECT_LOG.encode(), lambda path: search.replay(path.read_text("utf-8", "replace"))),
        "recent": (json.dumps([["a", "b"], ["c", "d"]]).encode(), read_recent),
        "done": (json.dumps({"signature": "hmac", "record": record}).encode(), lambda path: read_record(path, "a")),
    }


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def _check_text(rng: random.Random, path: Path, content: bytes, read: Callable[[Path], object]) -> Iterator[str]:
    path.write_bytes(mutated(rng, content))
    try:
        read(path)
    except TensordiffError as error:
        yield from _of_sentence(error)
