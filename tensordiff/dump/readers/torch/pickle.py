"""Reading the pickle inside a torch file without running it.

Python's own unpickler calls what a pickle names, sets attributes it asks for and grows its memo to whatever index it
claims; a subclass cannot prevent all three. This unpickler knows only the opcodes that ``torch.save`` writes. It builds
numbers, text, lists, tuples and dicts, asks ``globals`` for what torch and numpy make, and keeps everything else as
inert records. A value can be referred to a million times, so no opcode may cost more than the bytes it takes; long text
and bytes are not copied out of the file. Nothing here opens a file.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from tensordiff.dump.files import Bytes
from tensordiff.dump.names import LONGEST_NAME
from tensordiff.dump.readers.torch.globals import AllowedGlobal, find_global
from tensordiff.dump.readers.torch.numpy_values import PickledArray, PickledDType
from tensordiff.dump.readers.torch.records import Blob, LongText, Record, UnknownGlobal, is_program, refusal
from tensordiff.dump.readers.torch.tensors import (
    BadPickle,
    LongKey,
    Storage,
    TorchDType,
    UnreadableTensor,
    find_storage,
)

MAX_PICKLE_BYTES = 1 << 26
_MAX_OPCODES = 5_000_000  # some 200,000 tensors; a list takes one byte in a pickle and seventy in memory
_STOP = ord(".")
_NEWEST_PROTOCOL = 5
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))
_MOST_PARTS = 16  # of a key, or of a call's arguments
_LONG_FROM = 1 << 16  # longer text or bytes are not copied out of the file
_INT_BITS = 60  # no two shorter integers have the same hash


class PickleContents(NamedTuple):
    """The value of a pickle, where it ends, and the storages it pointed to, by key."""

    value: object
    end: int
    storages: dict[str, Storage]


def unpickle(data: Bytes, start: int = 0, base: int = 0) -> PickleContents:
    """Read the pickle that starts at a byte of some data; ``base`` is where in the file the data begins."""
    machine = _Unpickler(data, start, base)
    try:
        value = machine.run()
    except (IndexError, KeyError, TypeError, ValueError, struct.error) as error:
        raise BadPickle(f"its pickle is damaged near byte {machine.at}; dump it again") from error
    return PickleContents(value, machine.at, machine.storages)


class _Unpickler:
    """The pickle machine: a stack, the stacks below it since the last marks, and a memo."""

    __slots__ = ("at", "base", "below", "data", "limit", "memo", "stack", "storages")

    def __init__(self, data: Bytes, start: int, base: int) -> None:
        self.base = base
        self.data, self.at, self.limit = data, start, min(len(data), start + MAX_PICKLE_BYTES)
        self.stack: list[object] = []
        self.below: list[list[object]] = []
        self.memo: dict[int, object] = {}
        self.storages: dict[str, Storage] = {}

    def run(self) -> object:
        for _ in range(_MAX_OPCODES):
            opcode = self.data[self.at]
            self.at += 1
            if opcode == _STOP:
                return self.stack.pop()
            step = _STEPS.get(opcode)
            if step is None:
                raise BadPickle(f"its pickle has an opcode {opcode:#x}, which torch.save does not write")
            step(self)
        raise BadPickle(f"its pickle has more than {_MAX_OPCODES:,} steps; save fewer tensors in one file")

    def take(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > self.limit:
            raise BadPickle("its pickle is truncated, or larger than any we read; dump it again")
        return self.data[start : self.at]

    def skip(self, count: int) -> int:
        """Skip bytes that stay in the file; returns their position in it."""
        start, self.at = self.at, self.at + count
        if self.at > len(self.data):
            raise BadPickle("its pickle is truncated; dump it again")
        self.limit = min(len(self.data), self.limit + count)
        return self.base + start

    def take_text(self, width: int) -> str | LongText:
        size = self.take_count(width)
        if size > _LONG_FROM:
            return LongText(self.skip(size), size)
        return self.take(size).decode("utf-8", "surrogatepass")

    def take_bytes(self, width: int) -> bytes | Blob:
        size = self.take_count(width)
        return Blob(self.skip(size), size, is_text=False) if size > _LONG_FROM else self.take(size)

    def take_count(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def take_line(self) -> str:
        end = self.data.find(b"\n", self.at, self.limit)
        if end < 0:
            raise BadPickle("its pickle is truncated; dump it again")
        return self.take(end + 1 - self.at)[:-1].decode()

    def pop_marked(self) -> list[object]:
        items, self.stack = self.stack, self.below.pop()
        return items


_Step = Callable[[_Unpickler], None]
_STEPS: dict[int, _Step] = {}


def _opcode(*codes: bytes) -> Callable[[_Step], _Step]:
    def register(step: _Step) -> _Step:
        _STEPS.update((code[0], step) for code in codes)
        return step

    return register


def _push(code: bytes, make: Callable[[_Unpickler], object]) -> None:
    """Register an opcode that pushes one value."""

    @_opcode(code)
    def step(machine: _Unpickler) -> None:
        value = make(machine)  # may replace the stack
        machine.stack.append(value)


_push(b"N", lambda _: None)
_push(b"\x88", lambda _: True)
_push(b"\x89", lambda _: False)
_push(b"K", lambda m: m.take_count(1))
_push(b"M", lambda m: m.take_count(2))
_push(b"J", lambda m: int.from_bytes(m.take(4), "little", signed=True))
_push(b"\x8a", lambda m: int.from_bytes(m.take(m.take_count(1)), "little", signed=True))
_push(b"G", lambda m: struct.unpack(">d", m.take(8))[0])
_push(b"X", lambda m: m.take_text(4))
_push(b"\x8c", lambda m: m.take_text(1))
_push(b"\x8d", lambda m: m.take_text(8))
_push(b"U", lambda m: m.take(m.take_count(1)).decode())  # str of Python 2
_push(b"T", lambda m: m.take(m.take_count(4)).decode())
_push(b"C", lambda m: m.take_bytes(1))
_push(b"B", lambda m: m.take_bytes(4))
_push(b"\x8e", lambda m: m.take_bytes(8))
_push(b"\x96", lambda m: m.take_bytes(8))
_push(b")", lambda _: ())
_push(b"]", lambda _: [])
_push(b"}", lambda _: {})
_push(b"\x8f", lambda _: [])  # a set: only what it holds matters
_push(b"t", lambda m: tuple(m.pop_marked()))
_push(b"\x91", lambda m: m.pop_marked())
_push(b"\x85", lambda m: (m.stack.pop(),))
_push(b"h", lambda m: m.memo[m.take_count(1)])
_push(b"j", lambda m: m.memo[m.take_count(4)])
_push(b"c", lambda m: find_global(m.take_line(), m.take_line()))


@_opcode(b"\x80")
def _protocol(machine: _Unpickler) -> None:
    if machine.take_count(1) > _NEWEST_PROTOCOL:
        raise BadPickle("its pickle is of a newer protocol than torch writes")


@_opcode(b"\x95")
def _frame(machine: _Unpickler) -> None:
    machine.take(8)


@_opcode(b"(")
def _mark(machine: _Unpickler) -> None:
    machine.below.append(machine.stack)
    machine.stack = []


@_opcode(b"q")
def _put(machine: _Unpickler) -> None:
    machine.memo[machine.take_count(1)] = machine.stack[-1]


@_opcode(b"r")
def _put_far(machine: _Unpickler) -> None:
    machine.memo[machine.take_count(4)] = machine.stack[-1]


@_opcode(b"\x94")
def _memoize(machine: _Unpickler) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


@_opcode(b"\x86")
def _pair(machine: _Unpickler) -> None:
    machine.stack[-2:] = [(machine.stack[-2], machine.stack[-1])]


@_opcode(b"\x87")
def _triple(machine: _Unpickler) -> None:
    machine.stack[-3:] = [(machine.stack[-3], machine.stack[-2], machine.stack[-1])]


@_opcode(b"a")
def _append(machine: _Unpickler) -> None:
    item = machine.stack.pop()
    _list(machine).append(item)


@_opcode(b"e", b"\x90")
def _extend(machine: _Unpickler) -> None:
    items = machine.pop_marked()
    _list(machine).extend(items)


@_opcode(b"s")
def _set_item(machine: _Unpickler) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _dict(machine)[_key(key)] = value


@_opcode(b"u")
def _set_items(machine: _Unpickler) -> None:
    items = machine.pop_marked()
    target = _dict(machine)
    for key, value in zip(items[::2], items[1::2], strict=True):
        target[_key(key)] = value


@_opcode(b"b")
def _set_state(machine: _Unpickler) -> None:
    """Keep the state of a record. Attributes of a mapping, such as ``_metadata`` of a state dict, are dropped."""
    state, top = machine.stack.pop(), machine.stack[-1]
    if type(top) is Record:
        if top.state is not None:
            raise BadPickle("its pickle gives one object two states")
        top.state = state
    elif type(top) is PickledArray or type(top) is PickledDType:
        top.set_state(state)
    elif type(top) is not UnreadableTensor:
        _dict(machine)


@_opcode(b"\x93")
def _named_by_stack(machine: _Unpickler) -> None:
    name, module = machine.stack.pop(), machine.stack.pop()
    if type(name) is not str or type(module) is not str:
        raise BadPickle("its pickle names a global by something other than text")
    machine.stack.append(find_global(module, name))


@_opcode(b"R", b"\x81")
def _call(machine: _Unpickler) -> None:
    """What a function would return, or a class would make of its arguments. Neither is called."""
    args, function = machine.stack.pop(), machine.stack.pop()
    machine.stack.append(_result(function, args))


@_opcode(b"\x92")
def _make_with_keywords(machine: _Unpickler) -> None:
    keywords, args, function = machine.stack.pop(), machine.stack.pop(), machine.stack.pop()
    if type(function) is not UnknownGlobal or type(keywords) is not dict:
        raise BadPickle("its pickle calls something that is not to be called")
    record = _result(function, args)
    if type(record) is Record:
        record.pairs = dict(keywords)
    machine.stack.append(record)


def _result(function: object, args: object) -> object:
    if type(args) is tuple and type(function) is UnknownGlobal:
        return refusal(function) if is_program(function) else Record(function, args)
    if type(args) is tuple and (type(function) is Record or type(function) is UnreadableTensor):
        return function if type(function) is UnreadableTensor else Record(_MADE, (function, *args[:_MOST_PARTS]))
    if (
        type(function) is not AllowedGlobal
        or function.build is None
        or type(args) is not tuple
        or len(args) > _MOST_PARTS
    ):
        raise BadPickle("its pickle calls something that is not to be called")
    return function.build(*args)


_MADE = UnknownGlobal("", "a function made by another")


@_opcode(b"Q")
def _point(machine: _Unpickler) -> None:
    storage = find_storage(machine.stack.pop())
    if machine.storages.setdefault(storage.key, storage) != storage:
        raise BadPickle("its pickle describes one storage in two ways")
    machine.stack.append(storage)


def _list(machine: _Unpickler) -> list[object]:
    top = machine.stack[-1]
    if type(top) is Record:
        top.items = [] if top.items is None else top.items
        return top.items
    if type(top) is not list:
        raise BadPickle("its pickle appends to something other than a list")
    return top


def _dict(machine: _Unpickler) -> dict[object, object]:
    top = machine.stack[-1]
    if type(top) is Record:
        top.pairs = {} if top.pairs is None else top.pairs
        return top.pairs
    if type(top) is not dict:
        raise BadPickle("its pickle fills something other than a dict")
    return top


def _key(key: object) -> object:
    """Check a dict's key.

    It must be flat, since hashing a deeply nested one would overflow the stack. A record is allowed.
    """
    if type(key) is str and len(key) > LONGEST_NAME:
        return LongKey.of(key)
    if type(key) is LongText:
        return LongKey(f"text at byte {key.at}", key.size)
    if type(key) is Record or type(key) is TorchDType or type(key) is UnknownGlobal:
        return key
    parts = key if type(key) is tuple else (key,)
    if len(parts) > _MOST_PARTS or not all(type(part) in _ATOMS and _is_small(part) for part in parts):
        raise BadPickle("its pickle has a dict whose keys are neither short text nor numbers")
    return key


def _is_small(part: object) -> bool:
    """Whether a part of a key is cheap: long text is slow to compare, large integers may be chosen to collide."""
    if isinstance(part, str | bytes):
        return len(part) <= LONGEST_NAME
    return not isinstance(part, int) or part.bit_length() <= _INT_BITS
