"""Remote files in ranges, and stores that fail: against a web server on the loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pytest

from tensordiff.errors import BadFile, StoreError, WriteError
from tensordiff.util.remote import ranges, store, user_path
from tensordiff.util.remote.paths import RemotePath
from tensordiff.util.remote.ranges import BLOCK, RangeFile
from tensordiff.util.remote.upload import upload_file
from tests.stores import WebServer

DATA = np.random.default_rng(0).integers(0, 256, 5 * BLOCK + 77, np.uint8).tobytes()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "file.bin").write_bytes(DATA)
    with WebServer(tmp_path) as one:
        yield one


def remote(server: WebServer, name: str = "file.bin?token=hush") -> RemotePath:
    return remote_of(f"{server.address}/{name}")


def remote_of(url: str) -> RemotePath:
    path = user_path(url)
    assert isinstance(path, RemotePath)
    return path


def opened(server: WebServer) -> RangeFile:
    path = remote(server)
    return RangeFile(path, path.stat().st_size)


def test_a_file_that_is_missing(server: WebServer) -> None:
    assert not remote(server, "missing.bin").exists()


def test_a_store_that_fails_for_good_is_named_without_secrets(server: WebServer) -> None:
    file = opened(server)
    server.before = lambda _method, _path: 503
    with pytest.raises(StoreError, match=r"file\.bin: its store failed 4 times") as caught:
        file[:10]
    assert "hush" not in str(caught.value)


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(StoreError, match=r"http://127\.0\.0\.1:1/file: its store failed 4 times"):
        user_path("http://127.0.0.1:1/file").exists()


def test_a_store_that_cannot_be_connected_to_is_named() -> None:
    """Of ftp, fsspec connects where others only remember the address."""
    asked = store.requests["connect"]
    with pytest.raises(StoreError, match=r"^ftp://u@127\.0\.0\.1:1/x: its store failed 4 times \(.*refused") as caught:
        user_path("ftp://u:hush@127.0.0.1:1/x").exists()
    assert store.requests["connect"] == asked + store.TRIES
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (ValueError("no repository in u:hush@h"), StoreError, "failed 4 times (no repository in u:…@h)"),
        (RuntimeError("asleep"), StoreError, "failed 4 times (asleep)"),
        (FileNotFoundError("org/repo"), BadFile, "says that there is no such place"),
        (PermissionError("no"), BadFile, "cannot be read (no)"),
    ],
)
def test_whatever_connecting_raises_names_the_store(
    error: Exception, kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", connect)
    with pytest.raises(kind) as caught:
        store.forget(remote_of("github://u:hush@h/x"))
    assert str(caught.value).startswith("github://u@h/x: its store " if kind is StoreError else "github://u@h/x: ")
    assert said in str(caught.value)


def test_connecting_is_tried_again_and_then_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, errors = fsspec.core.url_to_fs, [ConnectionError("busy"), TimeoutError("slow")]

    def connect_at_last(*args: object, **options: object) -> object:
        if errors:
            raise errors.pop()
        return connect(*args, **options)

    monkeypatch.setattr(fsspec.core, "url_to_fs", connect_at_last)
    asked = store.requests["connect"]
    for _ in range(2):
        assert store.place(remote_of("memory://a/b")).name == "/a/b"
    assert store.requests["connect"] == asked + 3


def test_a_store_that_fails_now_and_then_is_asked_again(server: WebServer) -> None:
    file = opened(server)
    answers = iter([500, 503, 429])
    server.before = lambda _method, _path: next(answers, None)
    assert file[:10] == DATA[:10]


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_forbidden_is_not_asked_for_again(server: WebServer, status: int) -> None:
    file = opened(server)
    server.before = lambda _method, _path: status
    before = len(server.paths)
    with pytest.raises(BadFile, match="cannot be read") as caught:
        file[:10]
    assert len(server.paths) == before + 1
    assert "hush" not in str(caught.value)


def test_what_a_server_does_not_do_is_not_asked_for_again(server: WebServer, tmp_path: Path) -> None:
    """This one answers every POST with 501."""
    asked = store.requests["write"]
    with pytest.raises(WriteError, match=r"/new: cannot be written: its store does not do that \(501"):
        upload_file(tmp_path / "file.bin", remote(server, "new"))
    assert store.requests["write"] == asked + 1


def test_what_a_store_cannot_do_is_not_asked_for_again() -> None:
    path, asked = remote_of("memory://a/b"), store.requests["write"]

    def call() -> None:
        raise NotImplementedError

    with pytest.raises(BadFile, match="its store does not do that"):
        store.attempt(path, "write", call)
    assert store.requests["write"] == asked + 1


def test_a_file_that_became_shorter_gives_no_other_bytes(server: WebServer) -> None:
    file = opened(server)
    (server.folder / "file.bin").write_bytes(DATA[: BLOCK // 2])
    with pytest.raises(StoreError, match="bytes came"):
        file[:BLOCK]


def test_it_is_no_buffer(server: WebServer) -> None:
    """Whoever reads it as memory fails, instead of reading what was never fetched."""
    with pytest.raises(TypeError):
        memoryview(opened(server))  # type: ignore[arg-type]


def test_a_server_that_knows_no_ranges(tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(DATA)
    with WebServer(tmp_path, knows_ranges=False) as server:
        assert opened(server)[BLOCK + 1 : BLOCK + 9] == DATA[BLOCK + 1 : BLOCK + 9]


@pytest.mark.parametrize(
    "part",
    [slice(0, 0), slice(-10, None), slice(BLOCK - 3, BLOCK + 3), slice(0, 4 * BLOCK), slice(None), slice(1, 10**12)],
)
def test_every_part_is_what_the_file_holds(server: WebServer, part: slice) -> None:
    assert opened(server)[part] == DATA[part]


def test_large_parts_come_in_parallel_pieces(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"PIECE": 100_000, "_LARGE": 200_000, "_ON_DISK": 300_000}.items():
        monkeypatch.setattr(ranges, name, value)
    file = opened(server)
    assert file[5:250_005] == DATA[5:250_005]
    array = file.array(7, 1_000_000)
    assert array.tobytes() == DATA[7:1_000_007]
    assert not array.flags.writeable
    assert bytes(file.whole()[:]) == DATA


def test_blocks_are_asked_for_once_and_ahead(server: WebServer) -> None:
    file = opened(server)
    for at in range(0, len(DATA), 50_000):
        assert file[at : at + 1000] == DATA[at : at + 1000]
    assert len(server.paths) <= 1 + 6, "its size, and its blocks"


def test_what_is_kept_is_bounded(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "KEPT_BYTES", 2 * BLOCK)
    file = opened(server)
    for at in (0, 3 * BLOCK, BLOCK, 4 * BLOCK, 2 * BLOCK, 5 * BLOCK):
        assert file[at : at + 10] == DATA[at : at + 10]
        assert ranges._blocks._kept_bytes <= 2 * BLOCK
    assert ranges._blocks._kept_bytes == sum(
        min(BLOCK, size - number * BLOCK) for _, size, number in ranges._blocks._kept
    )


def test_links_to_elsewhere_are_no_part_of_a_folder(server: WebServer) -> None:
    folder = remote(server, "")
    assert list(store.listing(folder)) == ["file.bin"]
