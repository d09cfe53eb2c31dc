"""Secrets of URLs: what is masked, where, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensordiff import secrets
from tensordiff.errors import printable
from tensordiff.secrets import keep_secrets, masked, masked_message


@pytest.fixture(autouse=True)
def no_secrets() -> Iterator[None]:
    secrets._secrets.clear()
    yield
    secrets._secrets.clear()


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("s3://A:hush@runs/x", "s3://A:…@runs/x"),
        ("hf:http://u:hush@h:1/m?sig=hush", "hf:http://u:…@h:1/m?…"),
        ("--cluster=tcp://u:hush@host:8786", "--cluster=tcp://u:…@host:8786"),
        ("zip://a:hush@b::s3://c:hush2@d?e=hush3", "zip://a:…@b::s3://c:…@d?…"),
        ("s3://A:hu/sh@runs/x", "s3://A:…@runs/x"),
        ("s3://A:hu?sh@runs/x", "s3://A:…@runs/x"),
        ("s3://A:h:us@h@runs/x", "s3://A:…@runs/x"),
        ("see http://u:hush@a/b?c=hush and more", "see http://u:…@a/b?…"),
        ("http://u:hush@[::1/x", "http://u:…@[::1/x"),
        ("http://u:h@x", "http://u:…@x"),
    ],
)
def test_what_is_masked(word: str, shown: str) -> None:
    keep_secrets(word)
    assert printable(word) == masked(word) == masked_message(word) == shown


@pytest.mark.parametrize(
    "word", ["", "://", "a://", "http://host:80/a@b", "s3://bucket/a:b", "hf:org/model", "x@y:z", "a?b=c", "http://h/?"]
)
def test_what_is_no_secret(word: str) -> None:
    keep_secrets(word)
    assert masked(word) == masked_message(word) == word


@pytest.mark.parametrize("quoted", ["p%40ss%27word", "p@ss'word"])
def test_other_spellings_of_a_password(quoted: str) -> None:
    keep_secrets("ftp://u:p%40ss'word@h/")
    assert masked(f"at u:{quoted}@h") == "at u:…@h"


def test_data_that_is_spelled_as_a_secret_stays_and_a_message_goes() -> None:
    keep_secrets("http://u:layers@h/x?name=attention&n=1")
    assert masked("layers.1.attention") == "layers.1.attention"
    assert masked("&name=attention") == "&name=…"
    assert masked_message("cannot find layers, attention of 1") == "cannot find …, … of 1"
    assert masked_message("multilayers") == "multilayers"


def test_the_longest_secret_goes_first() -> None:
    keep_secrets("s3://a:hush@b", "s3://a:hush@hush2@b")
    assert "hush" not in masked("s3://a:hush@hush2@b")
