"""What is asked of every engine: captured, paired without rules, agreeing; planted bugs named, and only these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tensordiff.capture.interpreter import interpreter
from tensordiff.capture.provenance import decode_tokens
from tensordiff.dump import open_dump
from tests.capture_engines.checkpoints import FORCED, IDS, Bug, both, scaled_norm
from tests.capture_engines.models import CASES, LLAMAS, NAMES, WITH_ROPE, ModelCase
from tests.capture_engines.running import (
    Shelf,
    compared,
    culprit,
    injected_layers,
    orphan_outputs,
    orphans_of_reference,
    wrong_by_themselves,
    wrong_layers,
)
from tests.cli.command import Call

every = pytest.mark.parametrize("case", CASES, ids=str)
every_llama = pytest.mark.parametrize("case", LLAMAS, ids=str)
every_bug = pytest.mark.parametrize(
    ("case", "bug"),
    [pytest.param(case, bug, id=f"{case}-{bug.__name__}") for case in CASES for bug in case.engine.bugs],
)


def settings(case: ModelCase, **more: Any) -> dict[str, Any]:
    """A prompt and the decoded tokens, where the model decodes any."""
    steps = NAMES[case.name].steps
    return {"steps": steps, "decode_ids": FORCED if steps > 1 else None, **more}


@every
def test_a_right_model_agrees_in_every_layer_and_step(shelf: Shelf, case: ModelCase) -> None:
    source, reference = shelf.source(case.engine.kind, case.name), shelf.reference(case.name, **settings(case))
    candidate = shelf.capture(source, **settings(case))
    session = compared(reference, candidate, shelf.injected(source, reference, **settings(case, decode_ids=None)))
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert (outcome.verdict, outcome.culprit) == ("agrees", None)
    assert {name for name in orphan_outputs(session) if not name.endswith(case.alone)} == set()
    assert {name for name in orphans_of_reference(session) if not name.endswith(case.missing)} == set()
    named = NAMES[case.name]
    paired = {(pair.name, pair.reference.step) for pair in session.pairs if not pair.reference.is_input}
    assert {(name, step) for name in (named.last, named.block) for step in range(named.steps)} <= paired
    assert wrong_by_themselves(session) == set()
    injection = session.third_dumps.injected
    assert injection is not None
    layers = (name for name, call in injected_layers(injection).items() if not call["isolated"])
    names = {name.partition(" step ")[0].partition("(")[0] for name in layers}
    assert {name for name in names if not name.endswith(case.not_isolated)} == set()
    for dump in (open_dump(candidate), injection):  # whatever the engine itself would have gone on with
        assert decode_tokens(dump, named.steps) == (FORCED if named.steps > 1 else ())
        assert dump.facts["decode_token_ids"] == list(FORCED[: named.steps - 1])
        assert dump.facts["config_overrides"] == {}


@every_bug
def test_a_planted_bug_is_named_and_nothing_else(shelf: Shelf, case: ModelCase, bug: Bug) -> None:
    source, reference = shelf.source(case.engine.kind, case.name, bug), shelf.reference(case.name, **settings(case))
    candidate = shelf.capture(source, **settings(case))
    session = compared(reference, candidate, shelf.injected(source, reference, **settings(case)))
    wrong = NAMES[case.name].wrong(bug, case.engine.kind)
    assert culprit(session) == culprit(compared(reference, candidate)) == wrong[0]
    assert wrong_by_themselves(session) == set(wrong)
    if bug is both:
        healed = shelf.injected(source, reference, f"..{NAMES[case.name].block}", **settings(case))
        assert culprit(compared(reference, healed)) == NAMES[case.name].norm


@pytest.mark.parametrize("case", WITH_ROPE, ids=str)
def test_another_rope_theta_is_named(shelf: Shelf, case: ModelCase) -> None:
    source, reference = shelf.source(case.engine.kind, case.name), shelf.reference(case.name, **settings(case))
    wrong = settings(case, config=case.rope)
    session = compared(reference, shelf.capture(source, **wrong), shelf.injected(source, reference, **wrong))
    assert culprit(session) == "layers.0.self_attn"
    assert wrong_by_themselves(session) == set()
    attention = {f"model.model.layers.{layer}.self_attn" for layer in NAMES[case.name].turned}
    holding = {layer for layer in wrong_layers(session) if any(one.startswith(f"{layer}.") for one in attention)}
    assert wrong_layers(session) - holding == attention
    candidate = shelf.capture(source, **wrong)
    assert culprit(compared(reference, candidate)) == "layers.0.self_attn"
    assert open_dump(candidate).facts["config_overrides"] == case.rope


@pytest.mark.parametrize("case", [case for case in CASES if case.engine.kind != "llamacpp"], ids=str)
def test_bfloat16_has_no_false_culprit(shelf: Shelf, case: ModelCase) -> None:
    reference = shelf.reference(case.name, **settings(case, dtype="bfloat16"))
    candidate = open_dump(shelf.capture(shelf.source(case.engine.kind, case.name), **settings(case, dtype="bfloat16")))
    floats = {entry.spec.dtype.name for entry in candidate.entries if not entry.is_input}
    assert "bfloat16" in floats
    session = compared(reference, candidate.path)
    outcome = session.outcome(list(session.comparer.rows(session.pairs)))
    assert (outcome.culprit, outcome.verdict in ("agrees", "drifts")) == (None, True)
    named = NAMES[case.name]
    steps = {pair.reference.step for pair in session.pairs if pair.name == named.last and not pair.reference.is_input}
    assert steps == set(range(named.steps))


@every_llama
def test_a_right_model_is_verified(shelf: Shelf, call: Call, case: ModelCase, tmp_path: Path) -> None:
    sides = f"hf:{shelf.checkpoint(case.name)}", shelf.source(case.engine.kind, case.name)
    asked = ("--input-ids", ",".join(map(str, IDS)), "--steps", "3")
    status, out, said = call("verify", *sides, "-o", tmp_path / "v", *asked)
    assert (status, out.startswith("The two runs agree in all of ")) == (0, True), (out, said)


@every_llama
def test_from_the_command_line(shelf: Shelf, call: Call, case: ModelCase, tmp_path: Path) -> None:
    kind = case.engine.kind
    source, model = shelf.source(kind, case.name, scaled_norm), shelf.checkpoint(case.name)
    wrong, ids = NAMES[case.name].norm, ",".join(map(str, IDS))
    status, _, said = call(
        "verify", f"hf:{model}", source, "-o", tmp_path / "v", "--input-ids", ids, "--steps", "3", "--save-layers"
    )
    assert (status, f"{source}: runs in {interpreter(kind)}" in said) == (1, True)
    assert wrong in (tmp_path / "v" / "summary.md").read_text("utf-8")
    ours, theirs = (tmp_path / "v" / "without_injection" / f"{side}_layers" for side in ("reference", "candidate"))
    tokens = [decode_tokens(open_dump(side), 3) for side in (ours, theirs)]
    assert tokens[0] == tokens[1] and len(tokens[0]) == 2, "whatever the wrong one would have gone on with"
    status, out, _ = call("bisect", ours, theirs, "--rerun")
    assert (status, f"first bad: {wrong}\n" in out) == (1, True), out
    replayed = [call("replay", ours, layer, "--source", source) for layer in (wrong, "layers.0.mlp")]
    if kind == "vllm":
        assert [status for status, _, _ in replayed] == [2, 2]
        assert "cannot be run by itself; give it the reference's inputs with" in replayed[0].err
    else:
        assert [status for status, _, _ in replayed] == [1, 0]
