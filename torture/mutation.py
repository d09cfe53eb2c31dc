"""Damage done to the bytes of a file: at random, and where it hurts, in lengths, headers, members and keys.

Random damage to a file with a checksum or a length in front is refused at the door. So a zip, a safetensors header,
JSON and lines of text are also taken apart, changed inside, and put together again, whole on the outside.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

_TELLING = (0, 1, 2, 7, 8, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 1)
_NUMBERS = (b"0", b"9", b"-1", b"1e9", b"1e999", b"99999999999999999999", b"NaN", b"null", b"", b"1.5", b"true", b'"x"')
_TEXTS = (
    "", "x", "..", "../x", "/etc/passwd", "a\nb", "\x1b[31m", "\x00", "\ud800", "é" * 50, "a" * 5000, "0", "F32", "#",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**31, 2**63, 2**64, -(2**70), 1.5, 1e308, float("nan"), float("inf"), [], {}, [[]], [-1],
    [0], [2**62, 4], [1] * 70, {"": None}, *_TEXTS,
)  # fmt: skip
_NEAR = 512  # headers lie within this of one end of a file
_MOST = 1 << 22  # bytes; a file must not grow without end

Change = Callable[[random.Random, bytearray], None]


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """The bytes of a valid file with one to four changes; ``others`` are files to take parts from."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        data = _changed(rng, data, others)[:_MOST]
    return data


def _changed(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    inside = _inside(data)
    if inside is not None and rng.random() < 0.6:
        return inside(rng, data)
    if others and rng.random() < 0.1:
        return _spliced(rng, data, rng.choice(others))
    some = bytearray(data)
    rng.choice(_CHANGES)(rng, some)
    return bytes(some)


# --- bytes ----------------------------------------------------------------------------------------


def _place(rng: random.Random, data: bytearray) -> int:
    end = max(len(data) - 1, 0)
    return rng.choice(
        (
            rng.randint(0, min(_NEAR, end)),
            rng.randint(max(end - _NEAR, 0), end),
            rng.randint(0, end),
            rng.randint(0, end),
        )
    )


def _set_byte(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at : at + 1] = bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))])


def _flip_bits(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        at = _place(rng, data)
        data[at : at + 1] = bytes(byte ^ (1 << rng.randrange(8)) for byte in data[at : at + 1])


def _set_integer(rng: random.Random, data: bytearray) -> None:
    at, width = _place(rng, data), rng.choice((2, 4, 8))
    if rng.random() < 0.5:
        at -= at % width
    number = rng.choice((*_TELLING, len(data), len(data) + 1, max(len(data) - 1, 0), rng.randrange(1 << 20)))
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "little", "big")))


def _nudge_integer(rng: random.Random, data: bytearray) -> None:
    """A length that is off by a little."""
    at, width = _place(rng, data), rng.choice((1, 2, 4, 8))
    number = int.from_bytes(data[at : at + width], "little") + rng.choice((-8, -4, -2, -1, 1, 2, 4, 8, 64))
    data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")


def _set_number(rng: random.Random, data: bytearray) -> None:
    """A number that is written as text."""
    digits = [at for at, byte in enumerate(data[:8192]) if 48 <= byte <= 57]
    if digits:
        at = rng.choice(digits)
        data[at : at + 1] = rng.choice(_NUMBERS)


def _truncate(rng: random.Random, data: bytearray) -> None:
    del data[_place(rng, data) :]


def _remove(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    del data[at : at + rng.randint(1, 64)]


def _double(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at:at] = data[at : at + rng.randint(1, 256)]


def _move(rng: random.Random, data: bytearray) -> None:
    at, size = _place(rng, data), rng.randint(1, 128)
    run = bytes(data[at : at + size])
    to = _place(rng, data)
    data[to : to + len(run)] = run


def _insert(rng: random.Random, data: bytearray) -> None:
    at = _place(rng, data)
    data[at:at] = rng.randbytes(rng.randint(1, 16))


def _append(rng: random.Random, data: bytearray) -> None:
    data += rng.choice((b"\0", b"\n", b"PK\x05\x06", rng.randbytes(64), bytes(data[:4096])))


_CHANGES: tuple[Change, ...] = (
    _set_byte, _flip_bits, _set_integer, _nudge_integer, _set_number, _truncate, _remove, _double, _move, _insert,
    _append,
)  # fmt: skip


def _spliced(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """The beginning of one file and the end of another."""
    return data[: rng.randint(0, len(data))] + other[rng.randint(0, len(other)) :]


# --- what is inside -------------------------------------------------------------------------------


def _inside(data: bytes) -> Callable[[random.Random, bytes], bytes] | None:
    """How a file of this kind is changed within, if it has an inside."""
    if data[:2] == b"PK":
        return _in_zip
    if data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data):
        return _in_safetensors
    if data[:1] in (b"{", b"[") and data[1:2] != b"[":
        return _in_json
    return _in_lines if b"\n" in data[:4096] and data[:4096].isascii() else None


def _in_zip(rng: random.Random, data: bytes) -> bytes:
    """Members changed, doubled, renamed, compressed or left out, with checksums that are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as whole:
            members = [(info.filename, whole.read(info)) for info in whole.infolist()]
    except (
        zipfile.BadZipFile,
        OSError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        OverflowError,
        zlib.error,
    ):
        return data[: rng.randint(0, len(data))]
    if not members:
        return data
    k = rng.randrange(len(members))
    name, content = members[k]
    match rng.randrange(7):
        case 0 | 1 | 2:
            members[k] = (name, _changed(rng, content, ()))
        case 3:
            members.insert(rng.randint(0, len(members)), (name, _changed(rng, content, ())))
        case 4:
            members[k] = (rng.choice(members)[0], content)
        case 5:
            members[k] = (name + rng.choice(("/", ".npy", "\\", "\u202e", "x")), content)
        case _:
            del members[k]
    made = io.BytesIO()
    how = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(made, "w", how) as whole:
        for name, content in members:
            info = zipfile.ZipInfo(name or "x")
            info.compress_type = how
            whole.writestr(info, content)
    return made.getvalue()


def _in_safetensors(rng: random.Random, data: bytes) -> bytes:
    size = int.from_bytes(data[:8], "little")
    header = _in_json(rng, data[8 : 8 + size])
    return len(header).to_bytes(8, "little") + header + data[8 + size :]


def _in_json(rng: random.Random, data: bytes) -> bytes:
    """A value changed, a key renamed or doubled; where it is not JSON any more, a line of it."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return _in_lines(rng, data)
    holder, key = _somewhere(rng, found)
    if holder is None:
        return data
    match rng.randrange(5):
        case 0 | 1:
            holder[key] = rng.choice(_VALUES)
        case 2 if isinstance(holder, dict):
            holder[rng.choice((*_TEXTS, key + "x"))] = holder.pop(key)
        case 3:
            other, other_key = _somewhere(rng, found)
            holder[key] = other[other_key] if other is not None else None
        case 4 if isinstance(holder, dict):
            return _doubled_key(rng, found, key)
        case _:
            del holder[key]
    return _json_bytes(found)


def _json_bytes(found: Any) -> bytes:
    try:
        return json.dumps(found).encode("utf-8", "backslashreplace")
    except (ValueError, RecursionError):  # a value was put into itself
        return b"{}"


def _doubled_key(rng: random.Random, found: Any, key: str) -> bytes:
    text = _json_bytes(found)
    mark = json.dumps(key).encode() + b": "
    at = text.find(mark)
    more = mark + json.dumps(rng.choice(_VALUES)).encode() + b", "
    return text[:at] + more + text[at:] if at >= 0 else text


def _somewhere(rng: random.Random, found: Any) -> tuple[Any, Any]:
    """A random place in JSON, as its holder and the key there."""
    holder, key, here = None, None, found
    while isinstance(here, dict | list) and here and (holder is None or rng.random() < 0.75):
        holder, key = here, rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        here = holder[key]
    return holder, key


def _in_lines(rng: random.Random, data: bytes) -> bytes:
    """Lines of text left out, doubled, moved, cut, or with a value replaced."""
    lines = data.split(b"\n")
    k = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            del lines[k]
        case 1:
            lines.insert(rng.randint(0, len(lines)), lines[k])
        case 2:
            other = rng.randrange(len(lines))
            lines[k], lines[other] = lines[other], lines[k]
        case 3:
            lines[k] = lines[k][: rng.randint(0, len(lines[k]))]
        case 4:
            key, equals, _ = lines[k].partition(b"=")
            value = json.dumps(rng.choice(_VALUES)).encode("utf-8", "backslashreplace")
            lines[k] = key + equals + (b" " + value if equals else b"")
        case _:
            lines[k] += rng.choice((b" ", b"#", b"'", b'"', b"]", b"\\", b"\x00", b"\xff", "é".encode(), b"(a+)+$"))
    return b"\n".join(lines)
