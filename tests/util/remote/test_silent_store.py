"""Stores that take a request and never answer: given up after a few tries, and named."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tensordiff.errors import StoreError
from tensordiff.util.remote import store, user_path


class SilentServer:
    """It takes every connection, and says nothing."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.taken: list[socket.socket] = []
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        while True:
            try:
                self.taken.append(self._socket.accept()[0])
            except OSError:
                return

    def close(self) -> None:
        self._socket.close()
        for one in self.taken:
            one.close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentServer]:
    monkeypatch.setattr(store, "SILENT_S", 0.2)
    monkeypatch.setattr(store, "FIRST_WAIT_S", 0.0)
    one = SilentServer()
    yield one
    one.close()


def test_a_web_server_that_says_nothing(server: SilentServer) -> None:
    with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{server.port}/file: its store failed {store.TRIES} times"):
        user_path(f"http://127.0.0.1:{server.port}/file").exists()


def test_a_bucket_that_says_nothing(server: SilentServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried four times by us and each time twice by the store's own library, not forty times."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "known")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    with pytest.raises(
        StoreError, match=rf"s3://silent{server.port}/dump: its store failed {store.TRIES} times"
    ) as got:
        user_path(f"s3://silent{server.port}/dump").exists()
    assert "hush" not in str(got.value)
    assert len(server.taken) <= 2 * store.TRIES
