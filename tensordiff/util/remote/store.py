"""Listings, sizes and byte ranges of a store, through fsspec, with retries.

The store's own library finds the credentials where it usually looks; none passes through here. A store that keeps
failing ends the command (``StoreError``), since every later tensor would have to wait for it, too. A single file that
is missing or forbidden is a ``BadFile``, as on a disk.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urljoin, urlsplit

from tensordiff.errors import BadFile, StoreError, printable
from tensordiff.util.remote.paths import RemotePath, given_url, without_secrets

T = TypeVar("T")
TRIES = 4
"""How often a request is tried before the store is said to fail."""
FIRST_WAIT_S = 0.2
"""The wait before the second try; each later wait is twice as long, and slightly random."""
_UNKNOWN_KIND = "Protocol not known"
"""What fsspec says about a scheme that it does not know."""
_INSTALL = "pip install 'tensordiff[remote]'"
HTTP = ("http:", "https:")
_S3 = ("s3:", "s3a:")
CONNECT_S = 10
SILENT_S = 15
"""How long a store may be silent before a try has failed. A store that hangs is given up after some two minutes."""
_FINAL = re.compile(r"(?i)credential|access denied|forbidden|unauthorized|invalidaccesskey|signature|no such bucket")
_UNABLE = (405, 501)
"""The answers of a web server to a kind of request that it does not support."""
_NO_BUCKET = re.compile(r"(?i)bucket does not exist|NoSuchBucket|no such bucket")
_BAD_URL = re.compile(r"(?i)param\w* ?validation|invalid bucket name")


class FileInfo(NamedTuple):
    """What a store says about a file or folder."""

    size: int
    is_folder: bool
    version: int
    """A number that changes with the content, as far as the store says."""


class StoreLocation(NamedTuple):
    """Where a path lies: fsspec's filesystem and the name in it."""

    filesystem: Any
    name: str


_lock = threading.Lock()
_listings: dict[RemotePath, dict[str, FileInfo]] = {}
_infos: dict[RemotePath, FileInfo | None] = {}
_locations: dict[str, StoreLocation] = {}
requests: dict[str, int] = {"connect": 0, "list": 0, "info": 0, "read": 0, "write": 0}
"""How often stores were asked for something in this process; tests and benchmarks read it."""


def forget(path: RemotePath) -> None:
    """Ask the store anew about a path and everything below it."""
    with _lock:
        for known in (_listings, _infos):
            for one in [one for one in known if one == path or path in one.parents]:
                del known[one]
    place(path).filesystem.invalidate_cache()


def place(path: RemotePath) -> StoreLocation:
    """The filesystem and name of a path; raises for a URL that is neither given by the user nor below one that is."""
    given = given_url(path)
    if given is None:
        raise BadFile(path, "is a URL that you did not give; a dump may not name one")
    (address, query, _), below = given
    filesystem, name = _connected(path, address)
    name = "/".join((name.rstrip("/"), *below)) if below else name
    return StoreLocation(filesystem, f"{name}?{query}" if query else name)


def _connected(path: RemotePath, address: str) -> StoreLocation:
    """The filesystem of an address. Opening some stores already sends a request, so that is retried, too."""
    if (location := _locations.get(address)) is None:
        try:
            location = _locations[address] = attempt(path, "connect", lambda: _connect(path.parts[0], address))
        except FileNotFoundError as error:
            raise BadFile(path, "its store says that there is no such place; check the URL") from error
    return location


def _connect(scheme: str, address: str) -> StoreLocation:
    try:
        import fsspec
    except ImportError as error:
        raise StoreError(f"{scheme}// paths are read through fsspec, which is not installed; {_INSTALL}") from error
    try:
        filesystem, name = fsspec.core.url_to_fs(address, **_options(scheme))
        if scheme in _S3:
            filesystem.retries = 1  # else it would try five times for each of our four tries
        return StoreLocation(filesystem, name)
    except ImportError as error:
        way = _INSTALL if scheme in (*_S3, *HTTP) else "install the library that it names"
        raise StoreError(f"{scheme}// paths need a library that is not installed ({error!s:.200}); {way}") from error
    except ValueError as error:
        if _UNKNOWN_KIND not in str(error):
            raise
        raise StoreError(f"{scheme}// is not a kind of store that fsspec knows ({error!s:.200})") from error


def _options(scheme: str) -> dict[str, Any]:
    """Options that keep a store's library from waiting for ever, and from retrying what we retry ourselves."""
    if scheme in _S3:
        retries = {"max_attempts": 1}
        return {"config_kwargs": {"connect_timeout": CONNECT_S, "read_timeout": SILENT_S, "retries": retries}}
    if scheme in HTTP:
        from aiohttp import ClientTimeout

        return {"client_kwargs": {"timeout": ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)}}
    return {}


# --- what is there --------------------------------------------------------------------------------


def info(path: RemotePath) -> FileInfo | None:
    """What lies at a path; None if nothing does. Taken from the listing of its folder if there is one."""
    with _lock:
        if path in _listings:
            return FileInfo(0, True, 0)
        if (siblings := _listings.get(_parent(path))) is not None and path.name in siblings:
            return siblings[path.name]
        if path in _infos:
            return _infos[path]
    found = _fetch_info(path)
    with _lock:
        _infos[path] = found
    return found


def _parent(path: RemotePath) -> RemotePath:
    parent = path.parent
    return parent if isinstance(parent, RemotePath) else path


def _fetch_info(path: RemotePath) -> FileInfo | None:
    if path.parts[0] in HTTP:
        return _fetch_web_info(path)
    try:  # one request: a store lists a file as itself
        listing(path)
    except _IsFile as error:
        return error.info
    except FileNotFoundError:
        return None
    return FileInfo(0, True, 0)


def _fetch_web_info(path: RemotePath) -> FileInfo | None:
    """What a web server has at a path. It has no folders: a path that it shows as a page may be one."""
    filesystem, name = place(path)
    try:
        row = attempt(path, "info", lambda: filesystem.info(name))
    except FileNotFoundError:
        return None
    if "html" in str(row.get("mimetype", "")):
        return FileInfo(0, True, 0)
    return _info_of(path, row)


class _IsFile(Exception):
    """What was to be listed is a file."""

    def __init__(self, found: FileInfo) -> None:
        super().__init__()
        self.info = found


def listing(path: RemotePath) -> dict[str, FileInfo]:
    """The content of a folder, by name. The store is asked once; ``forget`` makes it be asked again."""
    with _lock:
        if path in _listings:
            return _listings[path]
    filesystem, name = place(path)
    rows = attempt(path, "list", lambda: _list_rows(filesystem, name))
    content: dict[str, FileInfo] = {}
    is_web = path.parts[0] in HTTP
    prefix = _web_name(name) if is_web else filesystem._strip_protocol(name).rstrip("/")
    for row in rows:
        shown = _web_name(row["name"]) if is_web else row["name"].rstrip("/")
        if shown == prefix and row["type"] == "file" and not is_web:
            raise _IsFile(_info_of(path, row))
        folder, _, last = shown.rpartition("/")
        # A page may link to anywhere; only links into this folder count.
        if folder == prefix and last not in ("", ".", ".."):
            is_folder = row["type"] == "directory" or row["name"].endswith("/")
            known = row.get("size") is not None or is_folder
            content[last] = FileInfo(0, True, 0) if is_folder else _info_of(path / last, row) if known else _UNKNOWN
    if not content and not rows and not _exists(filesystem, name):
        raise FileNotFoundError(str(path))
    _fill_sizes(path, content)
    with _lock:
        _listings[path] = content
    return content


_LINK = re.compile(r"""href=["']([^"'?#]+)""")


def _list_rows(filesystem: Any, name: str) -> list[dict[str, Any]]:
    """What a store lists; for a web server, the links on its page."""
    if not name.startswith(("http:", "https:")):
        rows: list[dict[str, Any]] = filesystem.ls(name, detail=True)
        return rows
    page = filesystem.cat_file(name).decode("utf-8", "replace")
    folder = name.partition("?")[0].rstrip("/") + "/"
    return [{"name": urljoin(folder, link), "type": "file", "size": None} for link in _LINK.findall(page)]


def _web_name(url: str) -> str:
    """Host and path of a URL, without user and query, which identify a file of a web server."""
    parts = urlsplit(url)
    return f"{parts.netloc.rpartition('@')[2]}{unquote(parts.path).rstrip('/')}"


_UNKNOWN = FileInfo(-1, False, 0)


def files_after(path: RemotePath, most: int) -> list[tuple[str, int]]:
    """Names and sizes of the files that follow a file in its folder, if that was listed."""
    with _lock:
        siblings = _listings.get(_parent(path), {})
        names = list(siblings) if path.name in siblings else []
    after = names[names.index(path.name) + 1 :][:most] if names else []
    return [(name, siblings[name].size) for name in after if siblings[name].size > 0]


def _fill_sizes(folder: RemotePath, content: dict[str, FileInfo]) -> None:
    """Ask for the sizes that a listing does not give; a web page gives none."""
    from tensordiff.util.remote.ranges import pool

    names = [name for name, one in content.items() if one is _UNKNOWN]
    infos = list(pool().map(lambda name: _fetch_web_info(folder / name), names))
    for name, one in zip(names, infos, strict=True):
        if one is None or (one.is_folder and "." in name):  # a web page beside the files
            del content[name]
        else:
            content[name] = one


def _exists(filesystem: Any, name: str) -> bool:
    return bool(filesystem.exists(name))


def _info_of(path: RemotePath, row: dict[str, Any]) -> FileInfo:
    size = row.get("size")
    if not isinstance(size, int):
        raise BadFile(path, "its server does not say how long it is, so no part of it can be asked for; copy it")
    if row.get("type") == "directory":
        return FileInfo(0, True, 0)
    return FileInfo(size, False, _version(row))


def _version(row: dict[str, Any]) -> int:
    written: Any = row.get("LastModified") or row.get("last_modified") or row.get("mtime") or row.get("updated")
    if hasattr(written, "timestamp"):
        return int(written.timestamp() * 1e9)
    if isinstance(written, int | float):
        return int(written * 1e9)
    tag = row.get("ETag") or row.get("etag") or written
    return 0 if tag is None else int.from_bytes(str(tag).encode()[:7], "little")


# --- its bytes ------------------------------------------------------------------------------------


def read(path: RemotePath, start: int, end: int, size: int) -> bytes:
    """The bytes from ``start`` up to ``end`` of a file that is ``size`` bytes long, in one request."""
    if end <= start:
        return b""
    filesystem, name = place(path)

    def ask() -> bytes:
        with _single_request(filesystem):
            data: bytes = filesystem.cat_file(name, start=start, end=end)
        if len(data) == size != end - start:  # a server that does not support ranges sends the whole file
            data = data[start:end]
        if len(data) != end - start:
            raise _ShortAnswerError(f"{len(data):,} of {end - start:,} bytes came")
        return data

    try:
        return attempt(path, "read", ask)
    except FileNotFoundError as error:
        raise BadFile(path, "is gone from its store since it was listed; open the dump again") from error


_request_lock = threading.Lock()


def _single_request(filesystem: Any) -> AbstractContextManager[Any]:
    """A lock around requests to filesystems that are not asynchronous (sftp): most are not thread-safe."""
    return nullcontext() if filesystem.async_impl else _request_lock


class _ShortAnswerError(Exception):
    """A store sent fewer bytes than it was asked for."""


def attempt(path: RemotePath, kind: str, call: Callable[[], T]) -> T:
    """Send a request to a store, retrying with growing waits; an error says what failed.

    Raises ``FileNotFoundError`` if the store says that there is no such thing.
    """
    for number in range(1, TRIES + 1):
        requests[kind] += 1
        try:
            return call()
        except (BadFile, StoreError):
            raise
        except Exception as raised:
            error = _cause(raised)
            if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
                if _NO_BUCKET.search(str(error)):
                    bucket = printable(path.parts[1])
                    raise BadFile(path, f"its store has no bucket {bucket}; check the URL") from raised
                raise FileNotFoundError(str(path)) from raised
            reason = _reason(path, error)
            if _BAD_URL.search(_error_text(error)):
                hint = "check the URL; credentials are no part of it, the store's own library finds them"
                raise BadFile(path, f"is no URL of such a store ({reason}); {hint}") from error
            if isinstance(error, NotImplementedError) or _status(error) in _UNABLE:
                raise BadFile(path, f"its store does not do that ({reason})") from error
            if isinstance(error, PermissionError) or _is_final(error):
                hint = "the store's own library looks for credentials; see its documentation"
                raise BadFile(path, f"cannot be read ({reason}); {hint}") from error
            if number == TRIES:
                why = f"its store failed {TRIES} times ({reason}); try again when it answers"
                raise StoreError(f"{printable(path)}: {why}") from error
            time.sleep(FIRST_WAIT_S * 2 ** (number - 1) * random.uniform(0.75, 1.25))  # noqa: S311 - no secret
    raise AssertionError("unreachable")


def _cause(error: Exception) -> Exception:
    """The real cause of a "file not found": fsspec says so, too, of a web server that could not be reached."""
    cause = error.__cause__
    is_web = isinstance(cause, Exception) and type(cause).__module__.startswith("aiohttp")
    return cause if is_web and getattr(cause, "status", None) not in (404, 410) else error  # type: ignore[return-value]


def _is_final(error: Exception) -> bool:
    """Whether trying again would give the same answer."""
    status = _status(error)
    if status is not None and 400 <= status < 500 and status not in (408, 425, 429):
        return True
    return _FINAL.search(_error_text(error)) is not None


def _status(error: Exception) -> int | None:
    """The HTTP status of a failure, if it has one."""
    status = getattr(error, "status", None)  # of aiohttp; requests keeps it in the response
    if status is None:
        status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__} {error}"


def _reason(path: RemotePath, error: Exception) -> str:
    text, _, rest = without_secrets(path, str(error)).strip().partition("\n")
    if text.endswith(":"):  # the next line says what failed, and after its colon what would be right
        text += f" {rest.partition(': ')[0]}"
    text = text.strip().rstrip(".")
    return printable(f"{text:.300}" if text else type(error).__name__)
