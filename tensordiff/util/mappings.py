"""Memory-mapped files, and what happens if one is truncated while it is read.

Touching a page of a mapped file that the file no longer has raises SIGBUS, which kills the process without a message.
So this module keeps a list of our mappings and installs a signal handler in front of any other. If the faulting address
lies in one of our mappings, the handler maps pages of zeros in place of the missing ones, records the loss and lets the
reading go on. Every other signal goes to the handler that was there before. A truncated file reads as zeros within its
last page without any signal, so file sizes are compared as well. What was read from a lost file must not be used:

- ``Entry.read`` raises if this thread lost something, and so does any later read from that mapping.
- ``Comparer.rows`` turns pairs whose values lie in such a mapping into ``unknown`` rows (``loss_of``).
- A loss that nobody claimed ends the command, the app's thread or the capture with an error (``raise_unclaimed``).

SIGBUS is synchronous: it interrupts a load from memory and nothing else, so the handler may be written in Python, even
if the loading thread does not hold the GIL. docs/decisions/0010 describes the alternatives that were tried.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from tensordiff.errors import BadFile

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Mapping(mmap.mmap):
    """A file that is mapped for reading."""

    path: str = ""
    loss: Loss | None = None
    """The loss, if pages were gone when they were read; zeros take their place."""


@dataclass
class Loss:
    """Pages of a file that were gone when they were read."""

    path: str
    size: int
    """Bytes of the file when it was mapped."""
    bytes_left: int | None
    """Bytes of the file when it was read; None if that is not known."""
    thread: int
    is_claimed: bool = False
    """Whether somebody discarded what was read and reported it, by an error or by a row that could not be compared."""

    def error(self, tensor: str | None = None) -> BadFile:
        """The error to report."""
        read = f"while {'it' if tensor is None else f'its tensor {tensor!r:.120}'} was read"
        if self.bytes_left is not None and self.bytes_left < self.size:
            what = f"became shorter {read}: {self.bytes_left:,} of {self.size:,} bytes are left"
            return BadFile(self.path, f"{what}; let its writer finish, and start again")
        return BadFile(self.path, f"could not be read from the disk {read}; copy the dump elsewhere, and start again")


_mappings: set[weakref.ref[Mapping]] = set()
_losses: list[Loss] = []
_interrupts: list[KeyboardInterrupt] = []


def map_pages(handle: int, size: int, path: str | os.PathLike[str]) -> Mapping:
    """Map an open file for reading."""
    if not _was_installed:
        install_handler()
    mapping = Mapping(handle, size, access=mmap.ACCESS_READ)
    mapping.path = os.fspath(path)
    _mappings.add(weakref.ref(mapping, _mappings.discard))
    return mapping


# --- what was lost ------------------------------------------------------------------------------


def count_losses() -> int:
    """How many losses there were so far, in all threads."""
    return len(_losses)


def raise_losses(since: int, tensor: str | None = None) -> None:
    """Raise if this thread lost something since ``count_losses`` returned ``since``.

    The caller discards what it read.
    """
    if len(_losses) == since:
        return
    thread = threading.get_ident()
    if ours := [loss for loss in _losses[since:] if loss.thread == thread]:
        for loss in ours:
            loss.is_claimed = True
        raise ours[0].error(tensor)


def raise_if_lost(mapping: object) -> None:
    """Raise if a buffer is a mapping with a loss."""
    if _losses and isinstance(mapping, Mapping) and mapping.loss is not None:
        raise mapping.loss.error()


def compare_sizes(arrays: Iterable[NDArray[Any]] | None = None) -> None:
    """Record a loss for each file that is shorter now than when it was mapped.

    Looks at the files of the given arrays, or at all mapped ones.
    """
    if not _mappings:
        return
    mappings = (reference() for reference in _mappings.copy()) if arrays is None else map(_mapping_of, arrays)
    for mapping in {id(item): item for item in mappings if item is not None}.values():
        left = _bytes_left(mapping)
        if mapping.loss is None and left is not None and left < len(mapping):
            _note_loss(mapping, left, is_claimed=any(loss.is_claimed and loss.path == mapping.path for loss in _losses))


def loss_of(arrays: Iterable[NDArray[Any]], since: int, tensor: str | None = None) -> BadFile | None:
    """The error for values that lie in a mapping with a loss; None if all are whole.

    The caller discards what it computed from them since ``count_losses`` returned ``since``.
    """
    if not _losses:
        return None
    mappings = (mapping for array in arrays if (mapping := _mapping_of(array)) is not None)
    lost = next((mapping.loss for mapping in mappings if mapping.loss is not None), None)
    if lost is None:
        return None
    for loss in _losses[since:]:
        loss.is_claimed |= loss.path == lost.path
    return lost.error(tensor)


def _mapping_of(array: NDArray[Any]) -> Mapping | None:
    """The mapping that an array's values lie in, if any."""
    base: object = array
    while base is not None and type(base) is not Mapping:
        base = getattr(base, "base", None)
    return base


def raise_unclaimed(since: int = 0) -> None:
    """Raise for a loss since ``since`` that nobody claimed: what was read cannot be trusted."""
    if _interrupts:
        raise _interrupts.pop()
    if unclaimed := [loss for loss in _losses[since:] if not loss.is_claimed]:
        for loss in unclaimed:
            loss.is_claimed = True
        raise unclaimed[0].error()


def _note_loss(mapping: Mapping, bytes_left: int | None, *, is_claimed: bool = False) -> None:
    mapping.loss = Loss(mapping.path, len(mapping), bytes_left, threading.get_ident(), is_claimed)
    _losses.append(mapping.loss)


# --- the handler --------------------------------------------------------------------------------

_MACHINES = ("x86_64", "aarch64", "arm64")
_IS_MAC = sys.platform == "darwin"
_CODE_AT, _ADDRESS_AT = 8, 24 if _IS_MAC else 16  # in siginfo_t
_SIGINFO, _NODEFER = (0x40, 0x10) if _IS_MAC else (0x4, 0x40000000)
_MAP_FIXED = 0x10
_FAILED = ctypes.c_void_p(-1).value


class _Action(ctypes.Structure):
    """``struct sigaction``, as the C libraries of macOS and of 64-bit Linux define it."""

    _fields_ = (
        [("handler", ctypes.c_void_p), ("mask", ctypes.c_uint32), ("flags", ctypes.c_int)]
        if _IS_MAC
        else [
            ("handler", ctypes.c_void_p),
            ("mask", ctypes.c_ubyte * 128),
            ("flags", ctypes.c_int),
            ("restorer", ctypes.c_void_p),
        ]
    )


@cache
def _libc() -> Any:
    """The C library, called without releasing the GIL; None where its signal structures are not known to us."""
    if sys.platform not in ("linux", "darwin") or os.uname().machine not in _MACHINES:
        return None
    libc = ctypes.PyDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
    )  # fmt: skip
    libc.sigaction.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    return libc


_previous_action = _Action()
"""The handler that was installed before ours."""
_was_installed = _was_passed_on = False


def install_handler() -> None:
    """Install our handler. Called for every dump and comparison, since others (faulthandler) may have replaced it."""
    global _was_installed, _was_passed_on
    _was_installed, libc = True, _libc()
    if libc is None:
        return
    current = _Action()
    libc.sigaction(signal.SIGBUS, None, ctypes.byref(current))
    if current.handler != _entry_point():
        _was_passed_on = False
        ours = _Action(handler=_entry_point(), flags=_SIGINFO | _NODEFER)
        libc.sigaction(signal.SIGBUS, ctypes.byref(ours), ctypes.byref(_previous_action))


@cache
def _callback() -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(_on_bus_error)


@cache
def _entry_point() -> int:
    address = ctypes.cast(_callback(), ctypes.c_void_p).value
    assert address is not None  # noqa: S101 - a function has an address
    return address


def _on_bus_error(_signal: int, info: int, _context: int) -> None:
    """Repair the fault, or pass it to the previous handler. On return the load is tried again."""
    code = ctypes.c_int.from_address(info + _CODE_AT).value
    address = ctypes.c_void_p.from_address(info + _ADDRESS_AT).value or 0
    try:
        if code <= 0 or not _map_zeros(address):
            _pass_on_signal(was_sent=code <= 0)
    except KeyboardInterrupt as error:  # nothing could catch it here; the load fails again, and we are called again
        _interrupts.append(error)
    except Exception:  # trying again would fail for ever
        _pass_on_signal(was_sent=code <= 0)


def _map_zeros(address: int) -> bool:
    """Map zeros in place of the pages that a mapping of ours lost, from the new end of its file to the old one."""
    mapping = _mapping_at(address)
    if mapping is None:
        return False
    memory, left = _memory(mapping), _bytes_left(mapping)
    begin, size = memory.start, len(memory)
    first_lost = address - begin if left is None else min(address - begin, left + mmap.PAGESIZE - 1)
    first_lost -= first_lost % mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
    if _libc().mmap(begin + first_lost, size - first_lost, mmap.PROT_READ, flags, -1, 0) == _FAILED:
        return False
    _note_loss(mapping, left)
    return True


def _mapping_at(address: int) -> Mapping | None:
    present = (mapping for reference in _mappings.copy() if (mapping := reference()) is not None)
    return next((mapping for mapping in present if address in _memory(mapping)), None)


def _memory(mapping: Mapping) -> range:
    import numpy as np  # not at the top: the app asks about losses before it loads numpy

    begin: int = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    return range(begin, begin + len(mapping))


def _bytes_left(mapping: Mapping) -> int | None:
    try:
        return mapping.size()
    except (OSError, ValueError):
        return None


def _pass_on_signal(*, was_sent: bool) -> None:
    """Let the previous handler have the signal: the load fails again, or the signal is sent again.

    Two handlers may pass the signal to each other, so the second time it goes to the default action.
    """
    global _was_passed_on
    action = _Action() if _was_passed_on else _previous_action
    _was_passed_on = True
    _libc().sigaction(signal.SIGBUS, ctypes.byref(action), None)
    if was_sent:
        signal.pthread_kill(threading.get_ident(), signal.SIGBUS)
        install_handler()  # the previous handler did not end the process
