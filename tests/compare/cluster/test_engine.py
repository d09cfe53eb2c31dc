"""Pairs through an engine: the same rows as here, whatever holds the tensors; refusals; stretches of huge pairs.

The engine runs what it is given in this process, so that every kind of dump is packed and unpacked; Dask's own is
tested in ``test_dask_engine``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tensordiff.align import Pair
from tensordiff.compare.cluster import engine as engines
from tensordiff.compare.cluster import worker
from tensordiff.compare.cluster.engine import measurements
from tensordiff.compare.comparer import Comparer
from tensordiff.compare.measure import compiled_pass, dispatch
from tensordiff.compare.row import Row
from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.model import StoredTensor, entry
from tensordiff.errors import ClusterError
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.making import SAMPLES, MemoryTensor, nudged, numbers, save, save_npy, write


class Ticket:
    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self.is_cancelled = call, False

    def result(self) -> Any:
        return self._call()

    def cancel(self) -> None:
        self.is_cancelled = True


class InlineEngine:
    """An engine of one worker: this process."""

    width = 1

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.sent: list[int] = []

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Ticket:
        self.sent.append(len(arguments[0]))
        self.tickets.append(Ticket(lambda: function(*arguments)))
        return self.tickets[-1]

    def close(self) -> None:
        pass


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> InlineEngine:
    engine = InlineEngine()
    monkeypatch.setattr(engines, "connect", lambda _address: engine)
    return engine


def told(rows: list[Row]) -> list[tuple[object, ...]]:
    """All that a row says, with the bits of its numbers."""
    return [
        (
            row.pair.name,
            row.dtypes,
            row.shape,
            row.views,
            row.verdict,
            repr(row.diff),
            repr(row.injected),
            row.golden_ratio,
        )
        for row in rows
    ]


def both_ways(session: Session) -> tuple[list[Row], list[Row]]:
    here = list(session.rows())
    return here, list(replace(session, comparer=replace(session.comparer, cluster="inline")).rows())


def test_a_worker_of_another_version_is_refused(inline: InlineEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / "candidate"))
    rows = replace(session.comparer, cluster="inline").rows(session.pairs)
    monkeypatch.setattr(worker, "__version__", "0.0.1")
    monkeypatch.setattr(engines, "installation", lambda: worker.installation()._replace(version="9.9"))
    with pytest.raises(ClusterError, match=r"has tensordiff 0\.0\.1, and this is 9\.9"):
        next(rows)


def test_a_worker_that_rounds_in_another_way_is_refused(inline: InlineEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / "candidate"))
    own = worker.installation()
    monkeypatch.setattr(engines, "installation", lambda: own._replace(measuring_pass="compiled 123 plain riscv"))
    with pytest.raises(ClusterError, match="whose last digits differ"):
        next(replace(session.comparer, cluster="inline").rows(session.pairs))


def test_a_worker_that_does_not_see_the_files(inline: InlineEngine, tmp_path: Path) -> None:
    tensors = {"a-output": numbers(40_000), "b-output": numbers(8)}
    write(tmp_path / "ref", tensors)
    write(tmp_path / "cand", tensors)
    session = Session.open(Request(tmp_path / "ref", tmp_path / "cand"))

    def elsewhere(function: Callable[..., Any], *arguments: Any) -> Ticket:
        def call() -> Any:
            (tmp_path / "cand").rename(tmp_path / "away")
            try:
                return function(*arguments)
            finally:
                (tmp_path / "away").rename(tmp_path / "cand")

        return Ticket(call)

    inline.submit = elsewhere  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match=r"a worker cannot read what can be read here: .*under the same paths"):
        list(replace(session.comparer, cluster="inline").rows(session.pairs))


def test_what_cannot_be_read_says_the_same(
    inline: InlineEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_npy(Path("ref"), {"a": numbers(9), "b": numbers(3, 4), "c": numbers(5)})
    save_npy(Path("cand"), {"a": numbers(9), "b": numbers(7), "c": numbers(5)})
    session = Session.open(Request(Path("ref"), Path("cand"), learn=False))
    Path("cand/c.npy").write_bytes(Path("cand/c.npy").read_bytes()[:-3])
    here, there = both_ways(session)
    assert told(here) == told(there)
    assert {row.verdict.name for row in here} == {"agrees", "unknown"}


def test_what_lies_in_memory_is_measured_here(inline: InlineEngine) -> None:
    class Unsendable:
        def __init__(self, array: Array) -> None:
            self.array, self.lock = array, lambda: None

        @property
        def spec(self) -> Any:
            return MemoryTensor(self.array).spec

        def read(self) -> Array:
            return self.array

    pairs = []
    kinds: tuple[Callable[[Array], StoredTensor], ...] = (MemoryTensor, Unsendable, MemoryTensor)
    for k, kind in enumerate(kinds):
        ref, cand = (entry(f"l{k}-output", kind(numbers(9, seed=k))) for _ in range(2))
        pairs.append(Pair(k, f"l{k}", ref, cand, "name"))
    assert told(list(Comparer(cluster="inline").rows(pairs))) == told(list(Comparer().rows(pairs)))


def test_stopping_early_cancels_what_was_submitted(inline: InlineEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "FIRST_PAIRS", 1)
    monkeypatch.setattr(engines, "BATCH_PAIRS", 1)
    session = Session.open(Request(SAMPLES / "reference", SAMPLES / "candidate"))
    rows = measurements(inline, map(session.comparer._work, session.pairs))
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert len(inline.tickets) < len(session.pairs), "no more are under way than are worked on"
    assert [ticket.is_cancelled for ticket in inline.tickets] == [False] + [True] * (len(inline.tickets) - 1)


def dumps(folder: Path) -> dict[str, tuple[Path, Path]]:
    tensors = {f"layers.{k}.mlp-output": numbers(30, 50, seed=k) for k in range(5)}
    changed = {name: nudged(array, 1e-3) for name, array in tensors.items()}
    made: dict[str, tuple[Path, Path]] = {}
    for side, arrays in (("ref", tensors), ("cand", changed)):
        (folder / side / "torch").mkdir(parents=True)
        for name, array in arrays.items():
            torch.save(torch.from_numpy(array), folder / side / "torch" / f"{name}.pt")
        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, folder / side / "one.pt")
        np.savez(folder / side / "plain.npz", **arrays)  # type: ignore[arg-type]
        np.savez_compressed(folder / side / "packed.npz", **arrays)  # type: ignore[arg-type]
        write(folder / side / "native", arrays)
        save(folder / side / "one.safetensors", arrays)
        save_npy(folder / side / "npy", arrays)
    for name in ("torch", "one.pt", "plain.npz", "packed.npz", "native", "one.safetensors", "npy"):
        made[name] = folder / "ref" / name, folder / "cand" / name
    return made | {
        "samples": (SAMPLES / "reference", SAMPLES / "candidate"),
        "MAX": (SAMPLES / "reference", SAMPLES / "max"),
    }


def test_every_format_gives_the_same_rows(inline: InlineEngine, tmp_path: Path) -> None:
    for name, sides in dumps(tmp_path).items():
        here, there = both_ways(Session.open(Request(*sides)))
        assert told(here) == told(there), name
    assert max(inline.sent) < 200_000, "places are sent, not values"


def test_third_runs_and_views(inline: InlineEngine) -> None:
    sides = SAMPLES / "reference", SAMPLES / "candidate"
    golden = Request(*sides, golden=SAMPLES / "golden")
    for request in (golden, Request(*sides, injected=SAMPLES / "candidate_injected")):
        here, there = both_ways(Session.open(request))
        assert told(here) == told(there)


@pytest.mark.skipif(not compiled_pass.is_there(), reason="numpy measures a pair as a whole")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64"])
def test_a_huge_pair_in_stretches(
    inline: InlineEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    monkeypatch.setattr(engines, "HUGE_BYTES", 1 << 20)
    monkeypatch.setattr(dispatch, "CLUSTER_STRETCH", 1 << 20)
    wide = 100 * np.random.default_rng(1).standard_normal((1500, 1500))
    ref, cand = wide.astype(DTYPES[dtype]), (wide * 1.01).astype(DTYPES[dtype])
    if dtype.endswith("float32"):
        ref[700, 3] = np.nan
        cand[1400, 9] = np.inf
    same = ref.copy()
    for folder, (a, b) in {"ref": (ref, ref), "cand": (cand, same)}.items():
        write(tmp_path / folder, {"a-output": a, "b-output": b, "small-output": numbers(3)})
    here, there = both_ways(Session.open(Request(tmp_path / "ref", tmp_path / "cand")))
    assert told(here) == told(there)
    assert len(inline.sent) == 3 + 3 + 1


@pytest.mark.skipif(not compiled_pass.is_there(), reason="numpy measures a pair as a whole")
def test_sums_that_leave_the_range_are_taken_again(
    inline: InlineEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "HUGE_BYTES", 1 << 20)
    monkeypatch.setattr(dispatch, "CLUSTER_STRETCH", 1 << 20)
    ref = np.random.default_rng(1).standard_normal(1_500_000) * 1e200
    for folder, array in {"ref": ref, "cand": ref * (1 + 1e-9)}.items():
        write(tmp_path / folder, {"a-output": array})
    assert len(open_dump(tmp_path / "ref")) == 1
    here, there = both_ways(Session.open(Request(tmp_path / "ref", tmp_path / "cand")))
    assert told(here) == told(there)
