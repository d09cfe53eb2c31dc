"""A clean slate of what URLs were given, for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensordiff import secrets
from tensordiff.util.remote import paths, ranges, store


@pytest.fixture(autouse=True)
def no_urls(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "FIRST_WAIT_S", 0.001)
    forget_urls()
    yield
    forget_urls()


def forget_urls() -> None:
    for known in (paths._given, paths._folders, store._listings, store._infos, store._locations):
        known.clear()
    ranges.clear()
    secrets._secrets.clear()
