"""Never exit 0 for a wrong model: what keeps two dumps from agreeing although no layer diverges."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.compare.limits import Limits
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, MemoryTensor, entry
from tensordiff.errors import AlignError
from tensordiff.report.model import summary_sentence
from tensordiff.search.outcome import Outcome
from tensordiff.session.from_arrays import session_of
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.testing import Disagreement, assert_agrees
from tests.cli.command import Call
from tests.cli.conftest import call as call
from tests.making import SAMPLES, held, nudged, numbers, save

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


def few_wrong_tokens() -> tuple[dict[str, Array], dict[str, Array]]:
    """Blocks alone, in 16 bits: from the third on 6 of 32 tokens are wrong."""
    half = {name: value.astype(np.float16) for name, value in LAYERS.items()}
    candidate = {name: nudged(value.astype(np.float32), 1e-3).astype(np.float16) for name, value in half.items()}
    for name in list(LAYERS)[2:]:
        candidate[name] = half[name].copy()
        candidate[name][3:9] = nudged(half[name][3:9].astype(np.float32), 0.09, seed=5).astype(np.float16)
    return half, candidate


@pytest.mark.parametrize(("limit", "status"), [(None, 2), (0.5, 0)])
def test_a_few_wrong_tokens_of_a_block_are_not_passed_as_tokens_that_took_other_experts(
    limit: float | None, status: int
) -> None:
    """Nothing that was dumped says whether the model has experts; a user's own tolerance is no matter of that."""
    half, candidate = few_wrong_tokens()
    outcome = outcome_of(half, candidate, **({} if limit is None else {"limits": Limits(threshold=limit)}))
    assert (outcome.culprit, outcome.exit_status) == (None, status)
    if limit is None:
        [why] = outcome.doubts
        assert why.startswith("layers.2 is not explained: rel_l2") and "all of it in 6 of 32 tokens" in why


@pytest.mark.parametrize(("experts", "status"), [(False, 1), (True, 2)])
def test_a_few_wrong_tokens_of_a_block_are_wrong_where_the_capture_found_no_experts(experts: bool, status: int) -> None:
    reference, candidate = map(held, few_wrong_tokens())
    reference = replace(reference, facts={"model": {"experts": experts}})
    session = Session.of_dumps(Request(reference.path, candidate.path), reference, candidate)
    outcome = session.outcome(session.rows())
    assert outcome.exit_status == status
    if status == 1:
        assert outcome.culprit is not None and outcome.culprit.pair.name == "layers.2"


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


@pytest.mark.parametrize("name", ["layers.1.attn.score", "layers.1.classifier"])
def test_a_layer_named_like_a_last_one_within_a_block_decides_nothing(name: str) -> None:
    named = {"layers.1": name}
    reference, candidate = ({named.get(key, key): one for key, one in side.items()} for side in (RUN, growing()))
    assert outcome_of(reference, candidate).exit_status == 2


def test_nor_does_one_that_ran_before_the_end() -> None:
    right = {"embed": RUN["embed"], "score": numbers(32, 64, seed=41)}
    candidate = {**right, **{name: nudged(one, 1e-5) for name, one in right.items()}}
    assert outcome_of({**right, **LAYERS}, candidate | growing()).exit_status == 2


def test_errors_that_grow_are_not_passed_in_a_selection_either(tmp_path: Path) -> None:
    paths = save(tmp_path / "reference.safetensors", RUN), save(tmp_path / "candidate.safetensors", growing())
    session = Session.open(Request(*paths, only="embed|layers"))
    assert session.outcome(session.rows()).exit_status == 2


def test_a_few_numbers_that_are_far_off_are_wrong() -> None:
    """One number a token, of four tokens: terms that cancel explain some of an error, and not all of it."""
    scores = numbers(4, 1, seed=9)
    reference = {**RUN, "reward": scores, "norm": numbers(32, 64, seed=12)}
    assert outcome_of(reference, {**reference, "reward": nudged(scores, 5e-3)}).exit_status == 0
    assert outcome_of(reference, {**reference, "reward": -5 * scores}).exit_status == 1


def test_the_coarsest_type_of_the_run_explains_more() -> None:
    """Logits are often cast to float32 at the end of a run in bfloat16."""
    coarse = {name: array.astype(ml_dtypes.bfloat16) for name, array in RUN.items()}
    reference = {**coarse, "lm_head": numbers(32, 100, seed=9)}
    errors = {name: nudged(array, 2e-2 if name == "embed" else 3.5e-2) for name, array in coarse.items()}
    candidate = {**errors, "lm_head": nudged(reference["lm_head"], 6e-2)}
    assert outcome_of(reference, candidate).verdict == "drifts"
    assert outcome_of(reference, {**errors, "lm_head": nudged(reference["lm_head"], 0.14)}).exit_status == 2


def test_where_the_fault_lies_before_an_input_it_is_not_called_growth() -> None:
    """Nothing between the embedding and the norm was compared, but what the norm was given is: the fault is named."""
    reference = {"embed": A, "norm-input_0": A, "norm-output": LAYERS["layers.1"], "lm_head": LAYERS["layers.2"]}
    wrong = {name: nudged(array, 0.05) for name, array in reference.items()}
    outcome = outcome_of(reference, {**wrong, "embed": nudged(A, 1e-7)})
    assert outcome.culprit is not None and outcome.culprit.is_input
    assert "the fault lies between embed and it" in outcome.culprit.verdict.why
    assert (outcome.verdict, outcome.doubts) == ("diverges", ())


def test_a_tolerance_of_the_user_s_decides_instead(call: Call, tmp_path: Path) -> None:
    reference, candidate = save(tmp_path / "r.safetensors", RUN), save(tmp_path / "c.safetensors", growing())
    assert call("compare", str(reference), str(candidate), "--threshold", "100").status == 0
    said = call("compare", str(reference), str(candidate))
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
    assert outcome.doubts[0].startswith("coverage is 33.3%, below 50%: compared ")
    assert outcome_of(*sides, min_coverage=33).verdict == "agrees"
    with pytest.raises(Disagreement, match=r"coverage is 33\.3%"):
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


@pytest.mark.parametrize(("only", "is_told"), [(r"layers\.0", False), (r"layers\.", True)])
def test_and_so_is_the_warning_that_little_is_paired(only: str, is_told: bool, tmp_path: Path) -> None:
    candidate = {"layers.0": LAYERS["layers.0"]}
    paths = save(tmp_path / "reference.safetensors", LAYERS), save(tmp_path / "candidate.safetensors", candidate)
    found = Session.open(Request(*paths, only=only)).header_findings()
    assert any("found a partner" in finding.what for finding in found) == is_told


@pytest.mark.parametrize("share", [-1.0, 101.0, float("nan"), float("inf")])
def test_a_share_is_between_0_and_100(share: float) -> None:
    with pytest.raises(AlignError, match="a share in percent, from 0 to 100"):
        session_of(LAYERS, LAYERS, min_coverage=share)


def test_min_coverage_on_the_command_line(call: Call, tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", LAYERS)
    candidate = save(tmp_path / "c.safetensors", {"layers.0": LAYERS["layers.0"]})
    for command in (("compare",), ("report",), ("bisect", "--auto")):
        said = call(*command, str(reference), str(candidate))
        assert (said.status, "coverage is 16.6%, below 50%" in said.err) == (2, True), command
        assert call(*command, str(reference), str(candidate), "--min-coverage", "10").status == 0
    assert call("compare", str(reference), str(candidate), "--min-coverage", "nan").status == 2


# --- a second run in one dump --------------------------------------------------------------------------------

BLOCKS = {f"layers.{i}.{part}": numbers(32, 64, seed=9 * i + k) for i in range(4) for k, part in enumerate(("a", "b"))}
WRONG = {name: array + 1 for name, array in BLOCKS.items()}


def named(start: str, arrays: Arrays) -> dict[str, Array]:
    return {f"{start}{name}": array for name, array in arrays.items()}


@pytest.mark.parametrize(
    ("first", "second"), [("run_a.", "run_b."), ("", "again."), ("dump-01/", "dump-02/"), ("a_", "b_")]
)
def test_a_second_run_in_one_dump_is_not_passed(first: str, second: str, tmp_path: Path) -> None:
    """Of the two, the right one finds its partners: half of the dump, which is as much as is asked for."""
    two = named(first, BLOCKS) | named(second, WRONG)
    for sides in ((BLOCKS, two), (two, BLOCKS)):
        outcome = outcome_of(*sides)
        assert outcome.coverage is not None and outcome.coverage.share == 0.5
        assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
        assert "seems to hold two runs, named alike but for how they begin" in outcome.doubts[0]
        assert outcome_of(*sides, allow_partial=True).verdict == "agrees"


def test_nor_is_one_whose_tensors_are_second_calls() -> None:
    def dump(*calls: Arrays) -> Dump:
        entries = (entry(n, MemoryTensor(a))._replace(call=k) for k, run in enumerate(calls, 1) for n, a in run.items())
        return Dump(Path("held"), "held", tuple(entries), ordered=True)

    session = Session.of_dumps(Request(Path("r"), Path("c")), dump(BLOCKS), dump(BLOCKS, WRONG))
    [why] = session.outcome(session.rows()).doubts
    assert "the candidate seems to hold two runs, the second as second calls" in why


def test_blocks_of_which_other_parts_were_compared_are_no_second_run() -> None:
    parts = {f"blk.{i}.{part}": numbers(32, 64, seed=30 * i + k) for i in range(2) for k, part in enumerate("abcdefgh")}
    few = {name: array for name, array in parts.items() if not name.startswith("blk.1") or name[-1] in "ab"}
    assert outcome_of(few, parts).verdict == "agrees"


@pytest.mark.parametrize("more", [{"layers.4.a": A, "layers.4.b": A}, {"heads.a": A, "heads.b": A, "heads.c": A}])
def test_what_a_candidate_has_beyond_the_reference_is_no_second_run(more: Arrays) -> None:
    assert outcome_of(BLOCKS, {**BLOCKS, **more}).verdict == "agrees"


def test_two_towers_that_both_sides_have_are_no_second_run() -> None:
    towers = named("text.", BLOCKS) | named("vision.", WRONG)
    assert outcome_of(towers, towers).verdict == "agrees"


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


def test_an_output_that_only_one_side_calls_the_model_s_own_is_not_passed() -> None:
    """The candidate calls its logits something else, and they are wrong."""
    logits = numbers(32, 100, seed=77)
    ours, theirs = {**MODEL, "lm_head": logits}, {**MODEL, "zz": 3 * logits}
    for one, other in ((ours, theirs), (theirs, ours)):
        outcome = outcome_of(one, other, learn=False)
        assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
        assert "the model's own output was not compared (lm_head and zz)" in outcome.doubts[0]


@pytest.mark.parametrize("name", ["head", "proj_out", "net/final", "model-output"])
def test_logits_of_a_padded_vocabulary_under_another_name_are_asked_for(name: str) -> None:
    ours, theirs = {**MODEL, "lm_head": numbers(32, 100, seed=77)}, {**MODEL, name: numbers(32, 128, seed=78)}
    outcome = outcome_of(ours, theirs)
    assert outcome.exit_status == 2
    assert f"the model's own output was not compared (lm_head and {name})" in outcome.doubts[0]
    within = {**MODEL, "model.layers.5.mlp.up": numbers(32, 128, seed=78)}  # nearly as wide, and no logits
    assert outcome_of(ours, within, learn=False).verdict == "agrees"


@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_an_output_that_only_one_side_has_is_said_not_to_have_been_compared(
    call: Call, side: str, tmp_path: Path
) -> None:
    """All that was compared agrees, and nobody is left to think that the logits do."""
    whole = {**MODEL, "lm_head": numbers(32, 100, seed=77)}
    sides = (whole, MODEL) if side == "reference" else (MODEL, whole)
    outcome = outcome_of(*sides, learn=False)
    assert (outcome.verdict, outcome.exit_status) == ("agrees", 0)
    assert f"the model's own output (lm_head of the {side}) was not compared" in outcome.unanswered
    assert outcome.unanswered in summary_sentence(outcome)
    assert not outcome_of(whole, whole).unanswered and not outcome_of(MODEL, MODEL).unanswered
    paths = [str(save(tmp_path / f"{k}.safetensors", arrays)) for k, arrays in enumerate(sides)]
    said = call("compare", *paths)
    assert said.status == 0 and said.out.endswith("verdict: agrees\n")
    assert outcome.unanswered in " ".join(said.out.split())
    assert json.loads(call("compare", *paths, "--json").out)["alignment"]["unanswered_output"] == outcome.unanswered


def test_a_tolerance_does_not_stand_for_an_output_that_was_not_compared(call: Call, tmp_path: Path) -> None:
    logits = numbers(32, 100, seed=77)
    ours, theirs = {**MODEL, "lm_head": logits}, {**MODEL, "zz": 3 * logits}
    with pytest.raises(Disagreement, match="the model's own output was not compared"):
        assert_agrees(ours, theirs, learn=False, threshold=1e-3)
    paths = [str(save(tmp_path / f"{k}.safetensors", side)) for k, side in enumerate((ours, theirs))]
    for command in (
        ["compare"],
        ["compare", "--step", "0"],
        ["bisect", "--auto"],
        ["verify", "-o", str(tmp_path / "v")],
    ):
        assert call(*command, *paths, "--no-learn").status == 2, command


def test_an_output_of_the_model_that_is_nan_in_most_places_is_not_passed() -> None:
    given = numbers(32, 100)
    given[:, :60] = np.nan
    sides = {**MODEL, "lm_head": given}
    assert outcome_of(sides, sides).exit_status == 2
    given[:, 40:] = 1
    assert outcome_of(sides, sides).exit_status == 0


@pytest.mark.parametrize("value", [np.nan, np.inf, None], ids=["NaN", "infinite", "empty"])
def test_an_output_of_the_model_without_a_value_is_not_passed(call: Call, value: float | None, tmp_path: Path) -> None:
    """Both sides are NaN in the end: nothing says that the candidate is right."""
    given = numbers(32, 100)[:0] if value is None else np.full((32, 100), value, np.float32)
    sides = {**MODEL, "lm_head": given}
    outcome = outcome_of(sides, sides)
    assert (outcome.verdict, outcome.exit_status) == ("unknown", 2)
    assert "the model's own output, lm_head, has no value that could be compared" in outcome.doubts[0]
    assert outcome_of(sides, sides, only=r"layers\.\d").exit_status == 0
    path = str(save(tmp_path / "same.safetensors", sides))
    assert call("bisect", path, path, "--auto").status == 2


def steps(count: int) -> Dump:
    made = tuple(entry(name, MemoryTensor(array), step) for step in range(count) for name, array in LAYERS.items())
    return Dump(Path("held"), "held", made, ordered=True)


def test_a_step_that_only_the_reference_has_is_not_passed() -> None:
    def outcome(*counts: int, **options: object) -> Outcome:
        session = Session.of_dumps(Request(Path("r"), Path("c"), **options), *map(steps, counts))  # type: ignore[arg-type]
        return session.outcome(session.rows())

    assert outcome(4, 3).exit_status == 2
    assert "of step 3 of the reference nothing was compared" in outcome(4, 3).doubts[0]
    assert outcome(4, 3, step=2).exit_status == 0
    assert outcome(4, 3, allow_partial=True).exit_status == 0
    assert outcome(3, 4).exit_status == 0  # nobody asked for more


def test_many_steps_that_only_one_side_has_are_told_in_short() -> None:
    session = Session.of_dumps(Request(Path("r"), Path("c"), min_coverage=0), steps(9), steps(2))
    assert "of 7 steps (2, 3, 4, 5, …) of the reference nothing was compared" in session.doubts[0]


# --- third dumps -------------------------------------------------------------------------------------------


def test_a_golden_of_something_else_is_ignored_and_it_is_said(call: Call, tmp_path: Path) -> None:
    """The candidate is another model, as far from this golden as the reference is."""
    other = {name: numbers(32, 64, seed=50 + i) for i, name in enumerate(LAYERS)}
    golden = {name: numbers(32, 64, seed=90 + i, dtype="float64") for i, name in enumerate(LAYERS)}
    outcome = outcome_of(LAYERS, other, golden=golden)
    assert outcome.exit_status == 1
    paths = [save(tmp_path / f"{k}.safetensors", side) for k, side in enumerate((LAYERS, other, golden))]
    said = call("compare", str(paths[0]), str(paths[1]), "--golden", str(paths[2]))
    assert said.status == 1
    assert "golden: was ignored for 6 pairs, first layers.0" in " ".join(said.out.split())


def test_a_golden_with_another_mask_is_no_finding(call: Call) -> None:
    """The least number of float64 hides the same places as that of float32, and the two sides hold the same bits."""
    said = call(
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


def test_one_value_beside_infinities_is_enough() -> None:
    arrays = {name: np.where(np.arange(64) == 3, array, np.float32("inf")) for name, array in LAYERS.items()}
    assert outcome_of(arrays, arrays).exit_status == 0
