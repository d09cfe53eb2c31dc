"""Signatures by a key that only this user has, to tell whether this user wrote something.

Anyone may have put files into a folder of dumps or results. What is to be trusted therefore carries a signature. Each
signature is for one purpose, so that it is worthless for any other.

The key is 32 random bytes in the user's state folder. If it cannot be stored there, or is not safe to use, a key of
this process takes its place: then this process trusts what it signed itself, and no other process does.
"""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from tensordiff.errors import printable

_BYTES = 32
_PROCESS_KEY = secrets.token_bytes(_BYTES)


def sign(purpose: str, text: str) -> str:
    """Sign a text in this user's name."""
    return _signature(_own_key(), purpose, text)


def why_not_own(purpose: str, text: str, signature: object) -> str:
    """Why a text is not known to be this user's own; empty if it is."""
    if not isinstance(signature, str):
        return "it is not signed"
    key, why = _read_key()
    for known in filter(None, (key, _PROCESS_KEY)):
        if hmac.compare_digest(_signature(known, purpose, text).encode(), signature.encode("utf-8", "replace")):
            return ""
    return why or "it is signed by someone else, or was changed since"


def _signature(key: bytes, purpose: str, text: str) -> str:
    signed = f"{purpose}\0{text}".encode("utf-8", "backslashreplace")
    return f"hmac-sha256:{hmac.digest(key, signed, 'sha256').hex()}"


def key_file() -> Path:
    """Where the key is kept."""
    from platformdirs import user_state_path  # not at the top: the interpreter of a child may lack it and needs no key

    return user_state_path("tensordiff", appauthor=False) / "capture.key"


def _own_key() -> bytes:
    """The user's key, which is created if there is none; the key of this process if that is impossible."""
    key, _ = _read_key()
    if key is None and not os.path.lexists(key_file()):
        with suppress(OSError):  # a home that cannot be written
            _create_key(key_file())
        key, _ = _read_key()
    return key or _PROCESS_KEY


def _create_key(path: Path) -> None:
    """Create the key file, whole or not at all. If two processes do so at once, one succeeds and both use its key."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.parent.stat().st_mode & 0o022:  # made by an earlier version, where the umask lets a group write
        path.parent.chmod(0o700)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink()


def _read_key() -> tuple[bytes | None, str]:
    """The key, or why there is none: it must be a regular file that nobody but this user can read or replace."""
    path = key_file()
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None, "you have no key here"
    except OSError as error:
        return None, f"your key {printable(path)} cannot be read ({(error.strerror or str(error)).lower()})"
    try:
        if (wrong := _why_unsafe(os.fstat(handle), path)) is not None:
            return None, f"your key {printable(path)} is not used: {wrong}"
        return os.read(handle, _BYTES), ""
    finally:
        os.close(handle)


def _why_unsafe(status: os.stat_result, path: Path) -> str | None:
    if not stat.S_ISREG(status.st_mode) or status.st_size != _BYTES:
        return f"it is no file of {_BYTES} bytes; remove it, and a new one is made"
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        return "others may read or own it; remove it, and a new one is made"
    folder = path.parent.stat()
    if folder.st_uid != os.geteuid() or folder.st_mode & 0o022:
        return f"others may write to its folder; chmod 700 {printable(path.parent)}"
    return None
