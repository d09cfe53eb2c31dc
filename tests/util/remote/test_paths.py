"""Paths that are URLs: what they show, what they hide, and what is never connected to."""

from __future__ import annotations

import pickle
import traceback
from pathlib import Path

import pytest

from tensordiff.errors import BadFile, NotADump, WriteError, printable
from tensordiff.util.remote import RemotePath, is_url, known_remote, user_path
from tensordiff.util.remote.paths import given_url, without_secrets
from tensordiff.util.remote.store import place


@pytest.mark.parametrize("text", ["", "a", "/a/b", "hf:org/model", "py:f.py:f", "C:/x", "a/s3://b", "://x", "max:a//b"])
def test_what_is_no_url_is_a_plain_path(text: str) -> None:
    assert not is_url(text)
    assert type(user_path(text)) is type(Path())


def test_secrets_are_not_in_what_is_shown() -> None:
    path = user_path("https://me:hush@host/a/b.npy?X-Signature=hush2")
    for text in (
        str(path),
        repr(path),
        f"{path}",
        str(path.parent),
        path.as_posix(),
        str(pickle.loads(pickle.dumps(path))),
    ):
        assert "hush" not in text
    assert str(path) == "https://me@host/a/b.npy"
    assert isinstance(path, RemotePath)
    assert without_secrets(path, "GET https://me:hush@host/a?X-Signature=hush2") == "GET https://me:…@host/a?…"


def test_the_store_gets_the_secrets() -> None:
    path = user_path("http://me:hush@host/folder?token=hush2")
    assert isinstance(path, RemotePath)
    assert place(path).name == "http://me:hush@host/folder?token=hush2"
    assert place(path / "x.npy").name == "http://me:hush@host/folder/x.npy?token=hush2"


def test_two_urls_that_show_the_same_are_refused() -> None:
    user_path("https://host/a?file=1")
    with pytest.raises(NotADump, match="given twice"):
        user_path("https://host/a?file=2")


def test_nothing_that_nobody_gave_is_connected_to() -> None:
    user_path("s3://mine/dumps/a")
    assert known_remote("s3://mine/dumps/a/x.pt") is not None
    assert known_remote("s3://mine/dumps/list.txt") is not None, "some formats keep a list beside the dump"
    assert known_remote("s3://other/x.pt") is None
    assert known_remote(Path("s3://mine/dumps/a")) is None, "a path from a dump's own files is local"
    assert given_url(RemotePath("s3://mine/elsewhere")) is None
    with pytest.raises(BadFile, match="you did not give"):
        RemotePath("s3://other/x.pt").exists()


def test_nothing_local_is_made_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = user_path("s3://bucket/report.html")
    for write in (path.mkdir, path.touch, path.open, lambda: path.parent.mkdir(parents=True)):
        with pytest.raises(WriteError, match="only dumps are read and written there"):
            write()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "schemes"),
    [
        ("zip://dr::file:///tmp/dr.zip", "zip::file"),
        ("simplecache::s3://me:hush@bucket/dr", "simplecache::s3"),
        ("zip://hush:hush@a/b::simplecache::s3://bucket/dr.zip", "zip::simplecache::s3"),
    ],
)
def test_a_chain_of_urls_is_refused_without_its_secrets(text: str, schemes: str) -> None:
    with pytest.raises(NotADump, match=rf"^{schemes}: is a chain of URLs, and only single ones are read"):
        user_path(text)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://u:hush@[::1/x", r"Invalid IPv6 URL"),
        ("http://u:hush\N{FULLWIDTH SOLIDUS}@host/x", "invalid characters"),
        ("s3://A:hu/sh@runs/x", "%2F %3F %23"),
        ("s3://A:hu?sh@runs/x", "%2F %3F %23"),
        ("s3://A:hu#sh@runs/x", "%2F %3F %23"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_without_it(url: str, why: str) -> None:
    with pytest.raises(NotADump, match=r"is no URL that can be read") as caught:
        user_path(url)
    assert why in str(caught.value)
    assert "hu" not in "".join(traceback.format_exception_only(caught.value))
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_ports_and_hosts_are_no_passwords() -> None:
    assert str(user_path("http://host:8080/model@v1/x")) == "http://host:8080/model@v1/x"


def test_secrets_of_a_library_caller_are_masked_in_sentences() -> None:
    user_path("https://me:hush@host/a?sig=hush2")
    assert printable("GET https://me:hush@host/a?sig=hush2") == "GET https://me:…@host/a?…"


def test_the_name_of_a_run_makes_no_chain() -> None:
    assert str(user_path("s3://bucket/a.npz::run")) == "s3://bucket/a.npz::run"
    assert str(user_path("a.npz::run")) == "a.npz::run"


def test_file_urls_are_local() -> None:
    assert user_path("file:///a/b") == Path("/a/b")


def test_it_is_a_path() -> None:
    path = user_path("s3://bucket/run/a.safetensors")
    assert (str(path), path.name, path.suffix) == ("s3://bucket/run/a.safetensors", "a.safetensors", ".safetensors")
    assert str(path.parent / "b") == "s3://bucket/run/b"
    assert type(path.parent) is RemotePath
    assert path.absolute() is path.resolve() is path.expanduser() is path
    assert {path: 1}[RemotePath("s3://bucket/run/a.safetensors")] == 1
