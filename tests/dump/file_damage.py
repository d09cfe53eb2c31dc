"""Damage for readers: valid files with their bytes changed, and the one promise that must survive it.

Whatever the bytes, a reader gives a dump whose every entry can be asked, or raises a
``TensordiffError``; nothing else comes out, and a claim in a header never becomes an allocation.

    @FUZZ
    @given(mutated(VALID))
    def test_damage(tmp_path: Path, data: bytes) -> None:
        path = tmp_path / "t.npy"
        path.write_bytes(data)
        keeps_promise(path)
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tensordiff.dump import Dump, Entry, open_dump
from tensordiff.dump.readers import readers
from tensordiff.errors import TensordiffError

FUZZ = settings(max_examples=200, deadline=5000, suppress_health_check=list(HealthCheck))

_TELLING = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1)
_NEAR = 256  # headers lie within this of one end of a file
_TOUCH_BELOW = 1 << 24


@st.composite
def mutated(draw: st.DrawFn, original: bytes) -> bytes:
    """The bytes of a valid file with a few changes: flips, telling integers, cuts, runs lost or doubled."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        draw(st.sampled_from(_CHANGES))(draw, data)
    return bytes(data)


def _place(draw: st.DrawFn, data: bytearray) -> int:
    end = max(len(data) - 1, 0)
    near_start, near_end = st.integers(0, min(_NEAR, end)), st.integers(max(end - _NEAR, 0), end)
    return draw(st.one_of(near_start, near_end, st.integers(0, end)))


def _set_byte(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    data[at : at + 1] = bytes([draw(st.integers(0, 255))])


def _flip_bit(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    data[at : at + 1] = bytes(b ^ (1 << draw(st.integers(0, 7))) for b in data[at : at + 1])


def _set_integer(draw: st.DrawFn, data: bytearray) -> None:
    at, width = _place(draw, data), draw(st.sampled_from([2, 4, 8]))
    data[at : at + width] = (draw(st.sampled_from(_TELLING)) % (1 << 8 * width)).to_bytes(width, "little")


def _set_digit(draw: st.DrawFn, data: bytearray) -> None:
    """Change a number that is written in text, as JSON and .npy headers write theirs."""
    digits = [at for at, byte in enumerate(data[:4096]) if chr(byte).isdigit()]
    if digits:
        at = draw(st.sampled_from(digits))
        data[at : at + 1] = draw(st.sampled_from([b"9", b"0", b"-1", b"1e9", b"99999999999999999999", b"null", b""]))


def _cut(draw: st.DrawFn, data: bytearray) -> None:
    del data[_place(draw, data) :]


def _remove_run(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    del data[at : at + draw(st.integers(1, 64))]


def _double_run(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    data[at:at] = data[at : at + draw(st.integers(1, 64))]


def _insert(draw: st.DrawFn, data: bytearray) -> None:
    at = _place(draw, data)
    data[at:at] = draw(st.binary(min_size=1, max_size=16))


_CHANGES: list[Callable[[st.DrawFn, bytearray], None]] = [
    _set_byte, _flip_bit, _set_integer, _set_digit, _cut, _remove_run, _double_run, _insert,
]  # fmt: skip


def keeps_promise(path: Path, limit_bytes: int = 1 << 24) -> Dump | None:
    """Open and ask everything; anything but a ``TensordiffError`` fails. None where it would not open."""
    with allocating_under(limit_bytes):
        try:
            dump = open_dump(path)
        except TensordiffError as error:
            assert_readable(error)
            return None
        for entry in dump.entries:
            ask(entry)
    return dump


def ask(entry: Entry) -> None:
    """Ask an entry everything; the array must be what its spec said, or one sentence must say why not."""
    try:
        spec, array = entry.spec, entry.read()
    except TensordiffError as error:
        assert_readable(error)
        return
    assert (array.shape, array.dtype) == (spec.shape, spec.dtype)
    if array.nbytes < _TOUCH_BELOW:
        np.ascontiguousarray(array).tobytes()


def assert_readable(error: TensordiffError) -> None:
    """A failure is text on one line that a terminal can be trusted with, and not a page of it."""
    assert str(error).isprintable()
    assert 10 < len(str(error)) < 2000


@contextmanager
def allocating_under(limit_bytes: int) -> Iterator[None]:
    """Fail where the block asks for more memory than this, even if it never touches it."""
    tuple(readers())  # what the first dump imports does not count
    tracemalloc.start(1)
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit_bytes, f"asked for {peak:,} bytes"
