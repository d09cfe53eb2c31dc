"""Names come from strangers: they are printed as text, on one line, and change nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import Call
from tests.making import numbers, save, save_npy, truncate, write

HOSTILE = {
    "markup": "blocks[/0]",
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "lines": "one\nverdict: agrees",
    "return": "layers.0\rlayers.1",
    "tag": "<script>alert(1)</script>",
    "long": "a" * 5000,
    "digits": "layers." + "9" * 5000,
    "wide": "語" * 60,
    "backwards": "abc\u202edef",
    "accents": "e" + "\u0301" * 3000,
    "null": "a\0b",
    "percent": "%s{0}%(x)s",
    "surrogate": "a\ud800b",
}
COMMANDS = ("compare", "inspect", "lint")


@pytest.fixture(params=HOSTILE)
def name(request: pytest.FixtureRequest) -> str:
    return HOSTILE[request.param]


def is_harmless(out: str) -> bool:
    return all(line.isprintable() for line in out.split("\n"))


def shown(name: str) -> str:
    """A name as it is printed: escapes are spelled out."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def shown_short(name: str) -> str:
    """The same in a line that has more to tell: at most 300 characters, cut in the middle."""
    whole = shown(name)
    return whole if len(whole) <= 300 else f"{whole[:99]}…{whole[-200:]}"


def test_a_pair_that_agrees(call: Call, tmp_path: Path, name: str) -> None:
    made = write(tmp_path / "d", {name: numbers(4)})
    said = call("compare", made, made)
    assert (said.status, said.err) == (0, "")
    assert is_harmless(said.out)
    assert f" {shown_short(name)} " in said.out
    assert said.out.endswith("\nverdict: agrees\n")


def test_a_culprit(call: Call, tmp_path: Path, name: str) -> None:
    reference = write(tmp_path / "r", {name: numbers(4)})
    candidate = write(tmp_path / "c", {name: -numbers(4)})
    said = call("compare", reference, candidate)
    assert said.status == 1
    assert is_harmless(said.out)
    assert f"\nverdict: diverges, first at {shown_short(name)}\n" in said.out
    assert f"\n  reference  {shown(name)}\n" in said.out


def test_an_orphan(call: Call, tmp_path: Path, name: str) -> None:
    reference = write(tmp_path / "r", {"a": numbers(4), name: numbers(4)})
    candidate = write(tmp_path / "c", {"a": numbers(4)})
    said = call("compare", reference, candidate)
    assert said.status == 0
    assert is_harmless(said.out)
    assert f"not paired on the reference: {shown_short(name)}\n" in said.out


def test_an_endless_name_widens_no_other_row(call: Call, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain", {"a": numbers(4)})
    with_long = write(tmp_path / "long", {"a": numbers(4), "b" * 5000: numbers(4)})
    row = next(line for line in call("compare", plain, plain).out.splitlines() if line.startswith("✓"))
    assert row in call("compare", with_long, with_long).out.splitlines()
    assert max(map(len, call("compare", with_long, with_long).out.splitlines())) < 500


def test_no_name_at_all(call: Call, tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", {"": numbers(4)})
    candidate = save(tmp_path / "c.safetensors", {"": -numbers(4), "a": numbers(4)})
    said = call("compare", reference, candidate)
    assert "\nverdict: diverges, first at (no name)\n" in said.out
    alone = call("compare", candidate, save(tmp_path / "a.safetensors", {"a": numbers(4)}))
    assert "not paired on the reference: (no name)\n" in alone.out


def test_inspect_and_lint(call: Call, tmp_path: Path, name: str) -> None:
    made = write(tmp_path / "d", {f"{name}.layers.{i}-output": 0 * numbers(4) for i in (0, 1)})
    for command in ("inspect", "lint"):
        said = call(command, made)
        assert is_harmless(said.out)
        assert shown(name) in said.out


@pytest.mark.parametrize("name", ["\x1b[31mred", "one\ntwo", "blocks[\u20440]"])
def test_a_file_that_cannot_be_read(call: Call, tmp_path: Path, name: str) -> None:
    made = save_npy(tmp_path / "d", {name: numbers(4)})
    truncate(made / f"{name}.npy")
    said = call("compare", made, made)
    assert said.status == 2
    assert is_harmless(said.out)
    assert len(said.err.splitlines()) == 1
    assert shown(name) in said.err
    assert is_harmless(said.err)
