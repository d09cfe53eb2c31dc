"""Paths that are URLs: ``s3://bucket/dump``, ``https://host/file.safetensors``, ``ssh://host/folder``.

A ``RemotePath`` is a ``Path``, so a reader joins, names and tests it like any other. Its text never shows a secret: the
password and everything after a ``?`` are removed from it and kept here, for the store alone. Only paths that a person
gave (``user_path``) and what lies below them are ever connected to: a URL inside a dump's own files is just text.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn
from urllib.parse import SplitResult, parse_qsl, urlsplit, urlunsplit

from tensordiff.errors import NotADump, WriteError, printable
from tensordiff.secrets import has_misplaced_password, keep_secrets

if TYPE_CHECKING:
    from tensordiff.util.remote.store import FileInfo

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_CHAIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:(:|//).*(?<=::)[A-Za-z][A-Za-z0-9+.-]+://")
_LOCAL = ("file", "local")


def is_url(text: str) -> bool:
    """Whether text begins like a URL; a source (``hf:…``) does not."""
    return _URL.match(text) is not None


def user_path(path: str | os.PathLike[str]) -> Path:
    """The path that a person gave, which may be a URL. Only these, and what lies below them, are connected to."""
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    _refuse_chain(text)
    if not is_url(text):
        return Path(path)
    keep_secrets(text)
    parts = _split(text)
    if parts.scheme.lower() in _LOCAL:
        return Path(f"{parts.netloc}{parts.path}")
    user, _, host = parts.netloc.rpartition("@")
    shown_host = f"{user.partition(':')[0]}@{host}" if user else host
    shown = RemotePath(f"{parts.scheme.lower()}://{shown_host}{parts.path}")
    address = urlunsplit((parts.scheme.lower(), parts.netloc, parts.path.rstrip("/"), "", ""))
    secrets = {user.partition(":")[2], parts.query, *(value for _, value in parse_qsl(parts.query))} - {""}
    _register(shown, GivenUrl(address, parts.query, tuple(sorted(secrets, key=len, reverse=True))))
    return shown


def check_url(text: str) -> None:
    """Raise as ``user_path`` would, for a text that may not be the final one."""
    _refuse_chain(text)
    if is_url(text):
        _split(text)


def _split(url: str) -> SplitResult:
    """The parts of a URL. An error does not show the URL, which may hold a secret."""
    scheme, _, rest = url.partition("://")
    if has_misplaced_password(rest):
        why = "its password holds one of / ? # as it is; write these as %2F %3F %23"
        raise NotADump(f"{printable(scheme)}://…: is no URL that can be read: {why}")
    try:
        return urlsplit(url)
    except ValueError as error:  # whose own traceback would show the URL
        raise NotADump(f"{printable(scheme)}://…: is no URL that can be read ({printable(error)}); check it") from None


def _refuse_chain(text: str) -> None:
    """Refuse chained URLs. The error does not show them, since any of them may hold a secret."""
    if _CHAIN.match(text):
        schemes = "::".join(part.partition(":")[0] for part in text.split("::"))
        raise NotADump(
            f"{printable(schemes)}: is a chain of URLs, and only single ones are read; unpack or copy what it leads "
            "to, and give that"
        )


class GivenUrl(NamedTuple):
    """A URL as it was given, including the parts that are not shown."""

    address: str
    query: str
    secrets: tuple[str, ...]


_given: dict[RemotePath, GivenUrl] = {}
"""The URLs that the user gave, by their shown text."""
_folders: dict[RemotePath, GivenUrl] = {}
"""The folders that these lie in: some formats keep a list of names, or a config, beside the dump."""


def _register(shown: RemotePath, given: GivenUrl) -> None:
    if _given.setdefault(shown, given) != given:
        why = "was given twice, with another password or another query; only one of them can be read in one process"
        raise NotADump(f"{printable(shown)}: {why}")
    if len(shown.parts) > 2:
        _folders.setdefault(shown.parent, given._replace(address=given.address.rpartition("/")[0]))


def given_url(path: RemotePath) -> tuple[GivenUrl, tuple[str, ...]] | None:
    """The URL that a path lies below, and the names that lead from there to it; None if nobody gave such a URL."""
    for known in (_given, _folders):
        for above in (path, *path.parents):
            if (given := known.get(above)) is not None:
                return given, path.parts[len(above.parts) :]
    return None


def known_remote(text: str | os.PathLike[str]) -> RemotePath | None:
    """The remote path that a text means, if it lies below one that the user gave; None for any other text."""
    if isinstance(text, RemotePath):
        return text
    if not _given or not isinstance(text, str) or not is_url(text):
        return None
    path = RemotePath(text)
    return path if given_url(path) is not None else None


def without_secrets(path: RemotePath, message: str) -> str:
    """A store's message without the secrets of the URL that it is about."""
    given = given_url(path)
    for secret in given[0].secrets if given else ():
        message = message.replace(secret, "…")
    return message


class RemotePath(PosixPath):
    """A file or folder in a store. Its text is its URL, without password and query."""

    __slots__ = ()

    def __str__(self) -> str:
        scheme, *names = self.parts
        return f"{scheme}//{'/'.join(names)}"

    def __fspath__(self) -> str:
        return str(self)

    def __reduce__(self) -> Any:
        return RemotePath, self.parts

    def _info(self) -> FileInfo | None:
        from tensordiff.util.remote.store import info

        return info(self)

    def exists(self, **_: Any) -> bool:
        """Whether the store has something there."""
        return self._info() is not None

    def is_file(self, **_: Any) -> bool:
        """Whether it is a file."""
        info = self._info()
        return info is not None and not info.is_folder

    def is_dir(self, **_: Any) -> bool:
        """Whether it is a folder."""
        info = self._info()
        return info is not None and info.is_folder

    def is_symlink(self) -> bool:
        """False: stores have no links."""
        return False

    def samefile(self, other_path: str | os.PathLike[str]) -> bool:
        """Whether another path is this URL: stores have neither links nor inodes."""
        return self == other_path

    def stat(self, **_: Any) -> os.stat_result:
        """The size, and a number that changes with the content; nothing else is known."""
        info = self._info()
        if info is None:
            raise FileNotFoundError(2, "no such file or folder", str(self))
        kind = stat.S_IFDIR if info.is_folder else stat.S_IFREG
        numbers = (kind | 0o444, 0, 0, 1, 0, 0, info.size, 0, 0, 0)
        return os.stat_result(numbers, {"st_mtime_ns": info.version, "st_ctime_ns": info.version})

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        """The content of the folder."""
        from tensordiff.util.remote.store import listing

        return (self / name for name in listing(self))

    def absolute(self) -> RemotePath:
        """The path itself: a URL is absolute."""
        return self

    def resolve(self, strict: bool = False) -> RemotePath:  # noqa: ARG002 - as Path has it
        """The path itself: stores have no links."""
        return self

    def expanduser(self) -> RemotePath:
        """The path itself: a URL has no home folder."""
        return self

    def mkdir(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to create a local folder of this name."""
        raise _only_read(self)

    def open(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: stores are read in ranges."""
        raise _only_read(self)

    def touch(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to create a local file of this name."""
        raise _only_read(self)


def refuse_url(path: str | os.PathLike[str]) -> None:
    """Refuse a URL where a local file is to be written: its text would become the name of a local folder."""
    if is_url(os.fspath(path)):
        raise _only_read(user_path(path))


def _only_read(path: Path) -> WriteError:
    return WriteError(
        f"{printable(path)}: is a URL, and only dumps are read and written there (capture -o, convert -o); "
        "name a local file"
    )
