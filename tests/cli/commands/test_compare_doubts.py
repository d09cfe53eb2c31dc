"""Why a comparison is inconclusive: what is said is true of each side, and what to do about it can be done."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Call
from tests.dump.readers.tools.stand_ins import A, msprobe, pt, sglang, tensor


def test_ranks_that_differ_were_compared_and_are_not_to_be_moved(call: Call, tmp_path: Path) -> None:
    folder = sglang(tmp_path / "d", ranks=2)
    (path,) = folder.glob("*rank=1*name=embed*")
    pt(path, {"value": tensor(A + 1), "meta": {"name": "embed", "dims": "t h"}})
    said = call("compare", folder, sglang(tmp_path / "other", ranks=2))
    assert said.status == 2
    assert "rank 0's was compared; look for a missing all-reduce or broadcast" in said.err
    assert "was not compared" not in said.err and "move it out" not in said.out


def test_a_side_that_holds_values_is_not_said_to_hold_none(call: Call, tmp_path: Path) -> None:
    values, statistics = msprobe(tmp_path / "values"), msprobe(tmp_path / "statistics", values=False)
    said = call("compare", values, statistics)
    assert said.status == 2
    assert "reference: the dump holds statistics" not in said.out
    assert "candidate: the dump holds statistics of tensors and no values" in said.out
    assert "the candidate holds statistics and no values" in said.err


def test_two_sides_of_statistics(call: Call, tmp_path: Path) -> None:
    one, other = (msprobe(tmp_path / name, values=False) for name in ("one", "other"))
    assert "the reference and the candidate hold statistics and no values" in call("compare", one, other).err
