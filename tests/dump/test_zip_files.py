from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tensordiff.dump import open_dump
from tensordiff.dump.zip_files import ZipMap, map_zip
from tensordiff.errors import BadFile
from tests.dump.file_damage import FUZZ, mutated
from tests.dump.readers.torch.torch_samples import zipped

MEMBERS = {"a": b"first", "b/c": b"", "b/\u00e9": bytes(range(256)), "long" * 100: b"x" * 1000}


def contents(mapped: ZipMap) -> dict[str, bytes]:
    spans = {name: mapped.span(name) for name in mapped.rows}
    return {name.decode(): mapped.buffer[span.start : span.start + span.size] for name, span in spans.items()}


@given(st.dictionaries(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), st.binary()))
def test_members_are_found_as_zipfile_wrote_them(members: dict[str, bytes]) -> None:
    assert contents(map_zip(zipped(members), "z")) == members


def test_a_comment_at_the_end() -> None:
    target = io.BytesIO(zipped(MEMBERS))
    with zipfile.ZipFile(target, "a") as archive:
        archive.comment = b"said PK\x05\x06 " * 40
    assert contents(map_zip(target.getvalue(), "z")) == MEMBERS


def test_sizes_and_offsets_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What zipfile writes for files past 4 GB, had with small ones by moving its limit."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    data = zipped(MEMBERS)
    assert b"PK\x06\x06" in data
    assert contents(map_zip(data, "z")) == MEMBERS


def test_more_members_than_16_bits_count() -> None:
    members = {f"{i}": b"" for i in range(70_000)}
    mapped = map_zip(zipped(members), "z")
    assert len(mapped.rows) == 70_000
    assert mapped.span(b"69999").size == 0


def test_a_member_that_is_not_there() -> None:
    with pytest.raises(BadFile, match=r"z: has no member 'x\\x1b'"):
        map_zip(zipped(MEMBERS), "z").span(b"x\x1b")


@FUZZ
@given(mutated(zipped(MEMBERS)))
def test_damage(data: bytes) -> None:
    try:
        mapped = map_zip(data, "z")
    except BadFile:
        return
    for name in mapped.rows:
        try:
            start, size = mapped.span(name)
        except BadFile:
            continue
        assert 0 <= start <= start + size <= len(data)


def test_damage_to_the_records_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 200)
    data = zipped({"a/data.pkl": b"\x80\x02}.", "a/data/0": bytes(300)})
    for at in range(len(data)):
        for value in (0x00, 0x7F, 0xFF):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            try:
                for start, size in map(map_zip(changed, "z").span, (b"a/data.pkl", b"a/data/0")):
                    assert 0 <= start <= start + size <= len(data)
            except BadFile as error:
                assert str(error).isprintable()


def test_torch_writes_many_storages(tmp_path: Path) -> None:
    tensors = {str(i): torch.full((1,), float(i)) for i in range(2000)}
    torch.save(tensors, tmp_path / "x.pt")
    dump = open_dump(tmp_path / "x.pt")
    assert [e.read().item() for e in dump.entries] == list(range(2000))
