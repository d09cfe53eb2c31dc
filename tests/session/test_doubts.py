"""Never exit 0 for a wrong model: what keeps two dumps from agreeing although no layer diverges."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, MemoryTensor, entry
from tensordiff.errors import AlignError
from tensordiff.search.outcome import Outcome
from tensordiff.session.from_arrays import session_of
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.testing import Disagreement, assert_agrees
from tests.cli.command import process
from tests.making import SAMPLES, nudged, numbers, save

A = numbers(32, 64)
LAYERS = {f"layers.{i}": numbers(32, 64, seed=i) for i in range(6)}
Arrays = Mapping[str, Array]


def outcome_of(reference: Arrays, candidate: Arrays, **options: object) -> Outcome:
    session = session_of(reference, candidate, **options)  # type: ignore[arg-type]
    return session.outcome(session.rows())


# --- an error that grows from layer to layer ---------------------------------------------------------

GROWING = dict(zip(LAYERS, (8e-5, 7e-4, 6e-3, 5e-2, 0.4, 3.5), strict=True))


RUN = {"embed": numbers(32, 64, seed=40), **LAYERS}


def growing() -> dict[str, Array]:
    quiet = {"embed": nudged(RUN["embed"], 9e-6)}
    return quiet | {name: nudged(LAYERS[name], error) for name, error in GROWING.items()}


def test_errors_that_grow_without_a_culprit_are_not_passed() -> None:
    outcome = outcome_of(RUN, growing())
    assert {row.verdict.name for row in outcome.rows[1:]} == {"drifts"}
    assert (outcome.culprit, outcome.verdict, outcome.exit_status) == (None, "unknown", 2)
    [why] = outcome.doubts
    assert "layers.5 is off by rel_l2 3.5e+00, more than float32 explains for a whole run" in why
    assert "the error grew most, 8.89 times, between embed and layers.0" in why


def test_an_error_from_the_first_output_on_is_not_passed_either() -> None:
    errors = dict(zip(LAYERS, (1e-3, 9e-3, 8.5e-2, 0.8, 5.0, 100.0), strict=True))
    assert outcome_of(LAYERS, {name: nudged(LAYERS[name], error) for name, error in errors.items()}).exit_status == 2


def test_assert_agrees_does_not_pass_them_either() -> None:
    with pytest.raises(Disagreement, match="more than float32 explains for a whole run"):
        assert_agrees(RUN, growing())


def test_the_model_s_own_output_decides_and_not_what_comes_to_nothing() -> None:
    """A branch that is far off and contributes nothing leaves the logits right."""
    reference = {**RUN, "lm_head": numbers(32, 100, seed=9)}
    candidate = growing() | {"lm_head": nudged(reference["lm_head"], 5e-4)}
    assert outcome_of(reference, candidate).exit_status == 0
    assert outcome_of(reference, candidate | {"lm_head": nudged(reference["lm_head"], 5e-2)}).exit_status == 2


def test_the_coarsest_type_of_the_run_explains_more() -> None:
    """Logits are often cast to float32 at the end of a run in bfloat16."""
    coarse = {name: array.astype(ml_dtypes.bfloat16) for name, array in RUN.items()}
    reference = {**coarse, "lm_head": numbers(32, 100, seed=9)}
    errors = {name: nudged(array, 2e-2 if name == "embed" else 3.5e-2) for name, array in coarse.items()}
    candidate = {**errors, "lm_head": nudged(reference["lm_head"], 6e-2)}
    assert outcome_of(reference, candidate).verdict == "drifts"
    assert outcome_of(reference, {**errors, "lm_head": nudged(reference["lm_head"], 0.14)}).exit_status == 2


def test_a_tolerance_of_the_user_s_decides_instead(tmp_path: Path) -> None:
    reference, candidate = save(tmp_path / "r.safetensors", RUN), save(tmp_path / "c.safetensors", growing())
    assert process("compare", str(reference), str(candidate), "--threshold", "100").status == 0
    said = process("compare", str(reference), str(candidate))
    assert said.status == 2
    assert "no layer is wrong by itself" in said.err


# --- coverage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("swapped", [False, True])
def test_coverage_is_of_both_sides(swapped: bool) -> None:
    few = {name: LAYERS[name] for name in ("layers.0", "layers.1")}
    sides = (few, LAYERS) if swapped else (LAYERS, few)
    outcome = outcome_of(*sides)
    assert {row.verdict.name for row in outcome.rows} == {"agrees"}
    assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
    assert outcome.doubts[0].startswith("coverage is 33%, below 50 %: compared are ")
    assert outcome_of(*sides, min_coverage=33).verdict == "agrees"
    with pytest.raises(Disagreement, match="coverage is 33%"):
        assert_agrees(*sides)
    assert_agrees(*sides, min_coverage=30)


def test_coverage_counts_outputs_bytes_and_what_could_not_be_measured() -> None:
    reference = {"a-input_0": A, "a-output": A, "b-output": numbers(8), "c-output": numbers(32, 32)}
    outcome = outcome_of(reference, {"a-output": A, "b-output": numbers(8), "c-output": numbers(7, 3)})
    assert outcome.coverage is not None
    assert outcome.coverage.reference.as_json() == {
        "compared": 2, "of": 3, "share": 0.6667, "share_of_bytes": round((2048 + 8) / (2048 + 8 + 1024), 4),
    }  # fmt: skip


def test_coverage_is_of_what_was_selected() -> None:
    assert outcome_of(LAYERS, {"layers.0": LAYERS["layers.0"]}, only=r"layers\.0").verdict == "agrees"
    assert outcome_of(LAYERS, {"layers.0": LAYERS["layers.0"]}, only=r"layers\.").verdict == "unknown"


@pytest.mark.parametrize("share", [-1.0, 101.0, float("nan"), float("inf")])
def test_a_share_is_between_0_and_100(share: float) -> None:
    with pytest.raises(AlignError, match="a share in percent, from 0 to 100"):
        session_of(LAYERS, LAYERS, min_coverage=share)


def test_min_coverage_on_the_command_line(tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", LAYERS)
    candidate = save(tmp_path / "c.safetensors", {"layers.0": LAYERS["layers.0"]})
    for command in (("compare",), ("report",), ("bisect", "--auto")):
        said = process(*command, str(reference), str(candidate))
        assert (said.status, "coverage is 17%, below 50 %" in said.err) == (2, True), command
        assert process(*command, str(reference), str(candidate), "--min-coverage", "10").status == 0
    assert process("compare", str(reference), str(candidate), "--min-coverage", "nan").status == 2


# --- captures that ended early ---------------------------------------------------------------------------


def interrupted(reference: bool = False, candidate: bool = True, **options: bool) -> Outcome:
    def dump(is_interrupted: bool) -> Dump:
        entries = tuple(entry(name, MemoryTensor(array)) for name, array in LAYERS.items())
        return Dump(Path("held"), "held", entries, ordered=True, interrupted=is_interrupted)

    session = Session.of_dumps(Request(Path("r"), Path("c"), **options), dump(reference), dump(candidate))  # type: ignore[arg-type]
    return session.outcome(session.rows())


@pytest.mark.parametrize("sides", [(True, False), (False, True), (True, True)])
def test_an_interrupted_capture_does_not_agree_unless_asked(sides: tuple[bool, bool]) -> None:
    outcome = interrupted(*sides)
    assert (outcome.verdict, len(outcome.doubts)) == ("unknown", sum(sides))
    assert "is an interrupted capture" in outcome.doubts[0]
    assert interrupted(*sides, allow_partial=True).verdict == "agrees"


# --- the model's own output --------------------------------------------------------------------------------

MODEL = {f"model.{name}": array for name, array in LAYERS.items()}


def test_the_model_s_own_output_must_be_compared_where_both_have_one() -> None:
    logits = numbers(32, 64, seed=77)
    ours = {**MODEL, "model-output_logits": logits}
    theirs = {**MODEL, "model-output_scores": numbers(32, 64, seed=78), "model-output_other": numbers(32, 64, seed=79)}
    outcome = outcome_of(ours, theirs)
    assert {row.verdict.name for row in outcome.rows} == {"agrees"}
    assert outcome.exit_status == 2
    assert "the model's own output was not compared (model-output_logits and model-output_s" in outcome.doubts[0]
    assert outcome_of(ours, {**MODEL, "model-output_logits": logits}).verdict == "agrees"


def test_a_model_that_gives_something_else_on_is_no_other_model() -> None:
    """One side returns the last hidden state, which was compared inside; the other a pooled vector of it."""
    ours = {**MODEL, "model-output_last_hidden_state": MODEL["model.layers.5"]}
    assert outcome_of(ours, {**MODEL, "model-output": numbers(64)}).verdict == "agrees"


def test_an_output_of_the_same_shape_that_stands_alone_is_not_passed() -> None:
    """Logits of the last layer are right; what the candidate gives on, scaled, was paired with nothing."""
    logits = numbers(32, 64, seed=77)
    ours = {**MODEL, "model.lm_head": logits, "model-output_logits": logits}
    given = {"model-output_scores": 3 * np.tanh(logits / 3), "model-output_other": numbers(32, 64, seed=78)}
    assert outcome_of(ours, {**MODEL, "model.lm_head": logits, **given}).exit_status == 2


# --- third dumps -------------------------------------------------------------------------------------------


def test_a_golden_of_something_else_is_ignored_and_it_is_said(tmp_path: Path) -> None:
    """The candidate is another model, as far from this golden as the reference is."""
    other = {name: numbers(32, 64, seed=50 + i) for i, name in enumerate(LAYERS)}
    golden = {name: numbers(32, 64, seed=90 + i, dtype="float64") for i, name in enumerate(LAYERS)}
    outcome = outcome_of(LAYERS, other, golden=golden)
    assert outcome.exit_status == 1
    paths = [save(tmp_path / f"{k}.safetensors", side) for k, side in enumerate((LAYERS, other, golden))]
    said = process("compare", str(paths[0]), str(paths[1]), "--golden", str(paths[2]))
    assert said.status == 1
    assert "golden: was ignored for 6 pairs, first layers.0" in " ".join(said.out.split())


def test_a_golden_with_another_mask_is_no_finding() -> None:
    """The least number of float64 hides the same places as that of float32, and the two sides hold the same bits."""
    said = process(
        "compare", *(str(SAMPLES / side) for side in ("reference", "candidate")), "--golden", str(SAMPLES / "golden")
    )
    assert said.status == 1
    assert "golden: was ignored" not in " ".join(said.out.split())


def test_a_golden_that_the_reference_lies_near_to_still_decides() -> None:
    golden = {name: array.astype(np.float64) for name, array in LAYERS.items()}
    reference = {name: nudged(array, 2e-5) for name, array in LAYERS.items()}
    candidate = {name: nudged(array, 2e-5, seed=3) for name, array in LAYERS.items()}
    assert outcome_of(reference, candidate, golden=golden).verdict == "agrees"


def test_an_injected_run_never_turns_a_divergence_into_exit_0() -> None:
    """The injected run is that of another model, or of the reference itself: everything looks like a victim."""
    wrong = LAYERS | {"layers.3": -LAYERS["layers.3"]}
    assert outcome_of(LAYERS, wrong).exit_status == 1
    outcome = outcome_of(LAYERS, wrong, injected=LAYERS)
    assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
    assert "layers.3 diverges in the plain run and is right in the injected one" in outcome.doubts[-1]


def test_an_injected_run_still_tells_a_victim_from_a_culprit() -> None:
    wrong = LAYERS | {"layers.1": -LAYERS["layers.1"], "layers.4": -LAYERS["layers.4"]}
    injected = LAYERS | {"layers.1": -LAYERS["layers.1"]}
    outcome = outcome_of(LAYERS, wrong, injected=injected)
    assert [row.pair.name for row in outcome.culprits] == ["layers.1"]
    assert outcome.exit_status == 1


# --- nothing that could be compared -------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrays",
    [
        {name: array[:0] for name, array in LAYERS.items()},
        {name: array * np.float32("nan") for name, array in LAYERS.items()},
        {name: np.full_like(array, np.inf) for name, array in LAYERS.items()},
    ],
    ids=["empty", "NaN", "infinite"],
)
def test_outputs_without_a_value_do_not_agree(arrays: Arrays) -> None:
    outcome = outcome_of(arrays, arrays)
    assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
    assert any("no output has a value that could be compared" in why for why in outcome.doubts)
    with pytest.raises(Disagreement, match="no output has a value"):
        assert_agrees(arrays, arrays)


def test_one_value_is_enough() -> None:
    arrays = {name: np.where(np.arange(64) == 3, array, np.float32("nan")) for name, array in LAYERS.items()}
    assert outcome_of(arrays, arrays).exit_status == 0
