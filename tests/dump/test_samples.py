"""The sample dumps show what their README says they show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array

SAMPLES = Path(__file__).parents[2] / "sample_dumps"
CULPRIT = "model.model.layers.1.mlp.act_fn"
ROUNDING = 1e-6


def rel_l2(found: Array, wanted: Array) -> float:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def outputs(name: str) -> dict[str, Array]:
    return {e.name: e.read() for e in open_dump(SAMPLES / name).entries if not e.is_input}


@pytest.fixture(scope="module")
def reference() -> dict[str, Array]:
    return outputs("reference")


@pytest.mark.parametrize(
    ("name", "format_", "count"),
    [
        ("reference", "torch-hook", 76),
        ("max", "max", 60),
        ("candidate", "tensordiff", 76),
        ("candidate_injected", "tensordiff", 76),
        ("golden", "tensordiff", 76),
    ],
)
def test_each_opens_whole(name: str, format_: str, count: int) -> None:
    dump = open_dump(SAMPLES / name)
    assert (dump.format, len(dump), dump.problems, dump.interrupted) == (format_, count, (), False)
    assert dump.ordered == (name != "max")


def test_the_candidate_goes_wrong_at_the_culprit(reference: dict[str, Array]) -> None:
    found = outputs("candidate")
    assert list(found) == list(reference)
    wrong = [name for name in found if rel_l2(found[name], reference[name]) > ROUNDING]
    assert wrong[0] == f"{CULPRIT}-output"
    assert rel_l2(found[wrong[0]], reference[wrong[0]]) > 1e-2


def test_with_right_inputs_only_what_holds_the_culprit_is_wrong(reference: dict[str, Array]) -> None:
    found = outputs("candidate_injected")
    wrong = {name.rpartition("-")[0] for name in found if rel_l2(found[name], reference[name]) > ROUNDING}
    parts = CULPRIT.split(".")
    ancestors = {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
    assert wrong == ancestors - {"model.model.layers"}


def test_every_input_of_the_injected_run_is_the_reference_s() -> None:
    wanted = {entry.name: entry for entry in open_dump(SAMPLES / "reference").entries}
    for entry in open_dump(SAMPLES / "candidate_injected").entries:
        assert entry.origin is not None
        assert entry.origin.injected
        if entry.is_input:
            assert entry.origin.injected == (entry.name,)
            assert np.array_equal(entry.read(), wanted[entry.name].read())


def test_golden_is_the_reference_in_float64(reference: dict[str, Array]) -> None:
    found = outputs("golden")
    assert {array.dtype.name for array in found.values()} == {"float64"}
    assert all(rel_l2(found[name], reference[name]) < ROUNDING for name in reference)


def test_max_is_a_healthy_port(reference: dict[str, Array]) -> None:
    found = outputs("max")
    for layer in (0, 1):
        for part in ("mlp", "mlp.down_proj", "self_attn.o_proj", "input_layernorm"):
            wanted = reference[f"model.model.layers.{layer}.{part}-output"][0]
            assert rel_l2(found[f"model.layers.layers.{layer}.{part}-output"], wanted) < ROUNDING


def test_runs_of_one_checkpoint_say_so() -> None:
    dumps: list[Dump] = [open_dump(SAMPLES / name) for name in ("candidate", "candidate_injected", "golden")]
    assert len({str(dump.facts["weights_hash"]) for dump in dumps}) == 1
    assert [dump.facts["dtype"] for dump in dumps] == ["float32", "float32", "float64"]
    assert all(len(str(dump.facts["prompt"])) > 9 == len(np.array(dump.facts["token_ids"])) for dump in dumps)


def test_samples_stay_small() -> None:
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 6 << 20
