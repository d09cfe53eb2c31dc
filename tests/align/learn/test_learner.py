"""Rules learned from values: other names, other numbers, other layouts, and what must stay unpaired."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tensordiff.align.learn.outline import outlines
from tensordiff.align.rules.file import RulesFile, read_rules_file, write_rules_file
from tensordiff.dump.dtypes import Array
from tensordiff.dump.model import Dump, MemoryTensor, entry
from tensordiff.session.paired_dumps import PairedDumps
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.model_runs import Run, run

REFERENCE = run(Run())


def learned(candidate: Dump, reference: Dump = REFERENCE) -> PairedDumps:
    return PairedDumps.align(reference, candidate, RulesFile(), learns=True)


def renamed(layer: str) -> str:
    words = {"layers": "blocks", "attn": "mixer", "mlp": "ffn", "norm": "scale", "q": "wq", "k": "wk", "v": "wv"}
    words |= {"o": "wo", "up": "rise", "act": "bend", "down": "fall", "embed": "table", "head": "logits"}
    return ".".join(["gpt", *(words.get(part, part) for part in layer.split("."))])


def from_one(layer: str) -> str:
    return re.sub(r"\d+", lambda number: f"{int(number[0]) + 1:02d}", renamed(layer))


def flat(layer: str) -> str:
    return renamed(layer).replace(".", "_")


@pytest.mark.parametrize("spell", [renamed, from_one, flat], ids=["words", "counted from 1", "flat"])
@pytest.mark.parametrize("wrong_from", [None, (2, "act"), (0, "act"), (0, "norm")])
def test_other_names_pair_everything_beyond_the_bug_too(
    spell: Callable[[str], str], wrong_from: tuple[int, str] | None
) -> None:
    candidate = run(Run(spell), wrong_from=wrong_from)
    pairs = learned(candidate).alignment.pairs
    assert len(pairs) == len(REFERENCE)
    assert {(p.reference.name, p.candidate.name) for p in pairs} == {
        (f"{e.layer}-{e.port}", f"{spell(e.layer)}-{e.port}") for e in REFERENCE.entries
    }
    assert {p.by for p in pairs} == {"learned"}


def test_the_culprit_is_named_as_with_the_true_names() -> None:
    for spell in (str, renamed):
        candidate = run(Run(spell), wrong_from=(2, "act"))
        session = Session.of_dumps(Request(Path("a"), Path("b")), REFERENCE, candidate)
        culprit = session.outcome(session.rows()).culprit
        assert culprit is not None and culprit.pair.reference.name == "layers.2.mlp.act-output"


@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("part", ["norm", "sum"])
def test_a_norm_that_adds_the_residual_is_named_though_the_first_one_has_none(part: str, layers: int) -> None:
    """The last block's is like no other that is right; and the sum, which the reference's norm is given, it computes
    itself.
    """
    reference = run(Run(), layers=layers)
    for spell in (str, renamed):
        other = Run(spell, lay_out=lambda array: array[0])
        candidate = run(other, wrong_from=(layers - 1, part), residual_apart=True, layers=layers)
        session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
        culprit = session.outcome(session.rows()).culprit
        assert culprit is not None and culprit.pair.reference.name == f"layers.{layers - 1}.norm-output"


def test_few_rules_each_with_its_proof_and_what_it_pairs() -> None:
    found = learned(run(Run(renamed), wrong_from=(2, "act"))).learned
    assert len(found.rules) == 22  # one for each place, not for each layer
    rule = next(rule for rule in found.rules if rule.map.reference == "layers.{i}.mlp.act")
    assert rule.map.candidate == "gpt.blocks.{i}.ffn.bend" and rule.used == 4
    assert ("layers.0.mlp.act-output", "gpt.blocks.0.ffn.bend-output") in rule.proof
    assert found.sentence.startswith("learned 22 rules: gpt.blocks.{i}") and found.sentence.endswith("--no-learn")
    assert f"used for {len(REFERENCE)}" in found.sentence


def test_it_is_the_same_every_time() -> None:
    candidate = run(Run(from_one), wrong_from=(1, "o"))
    assert learned(candidate).learned == learned(candidate).learned


def test_fused_projections_are_found_and_carried_on() -> None:
    pairs = learned(run(Run(renamed), wrong_from=(1, "o"), fused=True)).alignment.pairs
    fused = [p for p in pairs if p.candidate.layer.endswith("qkv")]
    assert [p.reference.name for p in fused if not p.candidate.is_input] == [
        f"cat(layers.{i}.attn.q, layers.{i}.attn.k, layers.{i}.attn.v)" for i in range(4)
    ]


@pytest.mark.parametrize("fused_side", ["candidate", "reference"])
def test_the_wrong_projection_of_a_fused_tensor_is_the_one_that_is_left(fused_side: str) -> None:
    """In the first block, so that no other proves how the three are fused."""
    is_fused = fused_side == "candidate"
    reference = run(Run(), fused=not is_fused)
    candidate = run(Run(renamed), wrong_from=(0, "q"), fused=is_fused)
    session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
    found = {(p.reference.name, p.candidate.name) for p in session.alignment.pairs}
    for i in range(4):
        ours, theirs = f"layers.{i}.attn.q-output", f"split(gpt.blocks.{i}.mixer.qkv, 0, 2)"
        if not is_fused:
            ours, theirs = f"split(layers.{i}.attn.qkv, 0, 2)", f"gpt.blocks.{i}.mixer.wq-output"
        assert (ours, theirs) in found
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and "layers.0.attn.q" in culprit.pair.reference.name


def heads_first(array: Array) -> Array:
    """[B, S, n*d] as [n, S, d]."""
    whole = array.reshape(array.shape[1], 4, -1)
    return np.ascontiguousarray(whole.transpose(1, 0, 2))


def test_layouts_are_found_by_value_and_carried_to_layers_where_values_differ() -> None:
    candidate = run(Run(renamed), wrong_from=(1, "o"))
    seen = tuple(
        e._replace(stored=MemoryTensor(heads_first(e.read())))
        if e.layer.endswith(("wq", "wk")) and not e.is_input
        else e
        for e in candidate.entries
    )
    pairs = learned(replace(candidate, entries=seen)).alignment.pairs
    views = [p.reference.name for p in pairs if p.candidate.layer.endswith(".wq") and not p.candidate.is_input]
    assert views == [f"swap_heads(heads(layers.{i}.attn.q, 4))" for i in range(4)]


def two_rows(dump: Dump, lay_out: Callable[[Array], Array]) -> Dump:
    """A batch of two, of which the second row is other tokens."""
    rows = (np.concatenate([one.read(), one.read()[:, ::-1] * np.float32(1.5)]) for one in dump.entries)
    entries = (one._replace(stored=MemoryTensor(lay_out(row))) for one, row in zip(dump.entries, rows, strict=True))
    return replace(dump, entries=tuple(entries))


@pytest.mark.parametrize("wrong_from", [None, (2, "act"), (3, "o")])
def test_tokens_before_the_batch_are_so_in_all_layers_beyond_the_bug_too(wrong_from: tuple[int, str] | None) -> None:
    candidate = two_rows(run(Run(renamed), wrong_from=wrong_from), lambda rows: rows.transpose(1, 0, 2).copy())
    reference = two_rows(REFERENCE, lambda rows: rows)
    pairs = learned(candidate, reference).alignment.pairs
    assert {(one.reference.name.partition(",")[0], one.candidate.name) for one in pairs} >= {
        ("permute(head", "gpt.logits-output"),
        ("permute(head-input_0", "gpt.logits-input_0"),
    }
    assert len(pairs) == len(reference)


def test_a_port_that_fits_nowhere_leaves_the_layout_of_the_others_known() -> None:
    def with_another(dump: Dump, size: int) -> Dump:
        first = dump.entries[0].layer
        last = max(k for k, one in enumerate(dump.entries) if one.layer == first)
        more = entry(f"{first}-output_1", MemoryTensor(noise(size, size, size)))
        return replace(dump, entries=(*dump.entries[: last + 1], more, *dump.entries[last + 1 :]))

    candidate = two_rows(run(Run(renamed), wrong_from=(2, "act")), lambda rows: rows.transpose(1, 0, 2).copy())
    reference = two_rows(REFERENCE, lambda rows: rows)
    pairs = learned(with_another(candidate, 7), with_another(reference, 5)).alignment.pairs
    assert "gpt.logits-input_0" in {one.candidate.name for one in pairs}
    assert len(pairs) == len(reference)


@pytest.mark.parametrize(
    ("spell", "head"),
    [
        (renamed, (r"^gpt\.blocks\.(\d+)", r"layers.\1")),
        (from_one, (r"^gpt\.blocks\.0*(\d+)", r"layers.{\1-1}")),
        (flat, (r"^gpt_blocks_(\d+)", r"layers.\1")),
    ],
    ids=["words", "counted from 1", "flat"],
)
def test_what_was_learned_is_written_as_rules_and_reads_back_to_the_same_pairs(
    tmp_path: Path, spell: Callable[[str], str], head: tuple[str, str]
) -> None:
    candidate = run(Run(spell), wrong_from=(2, "act"), fused=True)
    found = learned(candidate)
    write_rules_file(tmp_path / "rules.toml", found.kept_rules())
    rules = read_rules_file(tmp_path / "rules.toml")
    again = PairedDumps.align(REFERENCE, candidate, rules).alignment.pairs
    assert head in [(rule.match, rule.replace) for rule in rules.rules]
    assert len(rules.rules) <= 11 and all(one.candidate.rpartition("-")[0].endswith("qkv") or
                                          one.reference.startswith("cat(") for one in rules.maps)  # fmt: skip
    assert [(p.reference.name, p.candidate.name) for p in again] == [
        (p.reference.name, p.candidate.name) for p in found.alignment.pairs
    ]


def test_no_learn_learns_nothing() -> None:
    request = Request(Path("a"), Path("b"), learn=False)
    session = Session.of_dumps(request, REFERENCE, run(Run(renamed)))
    assert not session.alignment.pairs and not session.dumps.learned


def arrays(**values: Array) -> Dump:
    entries = tuple(entry(name.replace("__", "."), MemoryTensor(value)) for name, value in values.items())
    return Dump(Path("arrays"), "arrays", entries, ordered=True)


def noise(seed: int, *shape: int) -> Array:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def with_outer(dump: Dump, inner: str, outer: str) -> Dump:
    """A module around a layer, which gives on what the layer gives."""
    own = [one for one in dump.entries if one.layer == inner]
    return replace(dump, entries=(*dump.entries, *(entry(f"{outer}-{one.port}", one.stored) for one in own)))


def test_a_module_that_only_wraps_a_layer_is_the_one_that_is_meant() -> None:
    candidate = run(Run(renamed))
    entries = [
        entry(one.name.replace("gpt.logits", "gpt.logits.inner"), one.stored) if one.layer == "gpt.logits" else one
        for one in candidate.entries
    ]
    wrapped = with_outer(replace(candidate, entries=tuple(entries)), "gpt.logits.inner", "gpt.logits")
    partners = {p.reference.name: p.candidate.name for p in learned(wrapped).alignment.pairs}
    assert partners["head-output"] == "gpt.logits-output"


def test_zeros_constants_masks_and_integers_prove_nothing() -> None:
    mask = np.triu(np.full((1, 1, 9, 9), -3.4e38, np.float32), 1)
    same: dict[str, Array] = {"zeros": np.zeros((9, 8), np.float32), "ones": np.ones((9, 8), np.float32), "mask": mask}
    same["ids"] = np.arange(64).reshape(8, 8)
    reference = arrays(**{f"a__{name}": value for name, value in same.items()})
    candidate = arrays(**{f"b__{name}_x": value for name, value in same.items()})
    assert not learned(candidate, reference).alignment.pairs


def test_unrelated_dumps_share_nothing() -> None:
    reference = arrays(**{f"a__{k}": noise(k, 9, 8) for k in range(30)})
    candidate = arrays(**{f"b__{k}": noise(100 + k, 9, 8) for k in range(30)})
    assert not learned(candidate, reference).alignment.pairs


def test_a_name_is_overruled_where_another_tensor_is_proven_and_what_follows_agrees() -> None:
    x, w = noise(1, 1, 9, 16), noise(2, 16, 16)
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True))
    out = normed @ w
    reference = arrays(**{"norm-input_0": x, "norm-output": normed, "head-input_0": normed, "head-output": out})
    candidate = arrays(
        **{"norm-input_0": x, "norm-output_0": x, "norm-output_1": normed, "head-input_0": normed, "head-output": out}
    )
    session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
    named = {p.reference.name: p.candidate.name for p in session.alignment.pairs}
    assert named["norm-output"] == "norm-output_1"
    assert session.outcome(session.rows()).verdict == "agrees"
    assert "values overrule names in 1" in session.dumps.learned.sentence


def test_a_norm_that_was_forgotten_stays_the_culprit() -> None:
    """Its output is its input, which is proven; but the norm's own output is nowhere."""
    x, w = noise(1, 1, 9, 16), noise(2, 16, 16)
    normed = x / (3 * np.sqrt((x**2).mean(-1, keepdims=True)))
    reference = arrays(**{"norm-input_0": x, "norm-output": normed, "head-output": normed @ w, "aux": x + 1})
    candidate = arrays(**{"norm-input_0": x, "norm-output": x, "head-output": x @ w, "extra": x * 2})
    session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.reference.name == "norm-output"


def test_what_resembles_a_token_of_a_tensor_that_both_have_is_not_that_token() -> None:
    """An embedder's sum over all tokens points where the last one does, more or less."""
    x = noise(1, 1, 9, 16) + 2
    hidden = np.tanh(x @ noise(2, 16, 16))
    reference = arrays(**{"a": x, "hidden-input_0": x, "hidden": hidden, "aux": x + 1})
    candidate = arrays(**{"a": x, "hidden-input_0": x, "hidden": hidden, "model": hidden.sum(1)})
    session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
    assert "model" not in {pair.candidate.layer for pair in session.alignment.pairs}
    assert session.outcome(session.rows()).culprit is None


def test_a_part_of_a_run_is_paired_by_its_names_though_other_blocks_resemble_it() -> None:
    """Beside a residual stream the outputs of all blocks are much alike, and of many blocks only some are looked at."""
    x = noise(1, 64, 64)
    whole: dict[str, Array] = {}
    for k in range(12):
        up = x @ noise(2 + 2 * k, 64, 128) / 8
        down = np.tanh(up) @ noise(3 + 2 * k, 128, 64) / 40
        for name, given, made in (("up", x, up), ("act", up, np.tanh(up)), ("down", np.tanh(up), down)):
            whole |= {f"model.{k}.{name}-input_0": given, f"model.{k}.{name}-output": made}
        whole |= {f"model.{k}-input_0": x, f"model.{k}-output": x + down}
        x = x + down
    for k in range(12):
        part = {name: values for name, values in whole.items() if name.startswith(f"model.{k}-")}
        session = Session.of_dumps(Request(Path("a"), Path("b")), arrays(**whole), arrays(**part))
        assert [pair.reference.name for pair in session.alignment.pairs] == list(part)
        assert all(pair.reference.name == pair.candidate.name for pair in session.alignment.pairs)


def test_what_was_not_read_is_not_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The residual has the same name on both sides; only the result is carried apart from it."""
    x, result, residual = (noise(seed, 1, 9, 16) for seed in range(3))
    outputs = {"block-output_0": result + residual, "block-output_1": residual}
    reference = arrays(**{"trunk": x, "block-input_0": x, **outputs})
    candidate = arrays(**{"stem": x, "block-input_0": x, **outputs, "block-output_0": result})
    monkeypatch.setattr("tensordiff.align.learn.evidence.MAX_BYTES", 2 * x.nbytes)
    pairs = {pair.reference.name: pair.candidate.name for pair in learned(candidate, reference).alignment.pairs}
    assert pairs["block-output_1"] == "block-output_1"


def test_swapped_siblings_stay_the_culprit() -> None:
    """Two layers of which each gives what the other should, as after loading weights crosswise: no matter of names."""
    x = noise(1, 1, 9, 16)
    gate, up = x @ noise(2, 16, 16), x @ noise(3, 16, 16)
    reference = arrays(**{"gate-input_0": x, "gate": gate, "up-input_0": x, "up": up, "act-input_0": gate,
                          "act": np.tanh(gate), "out": np.tanh(gate) * up, "aux": x + 1})  # fmt: skip
    candidate = arrays(**{"gate-input_0": x, "gate": up, "up-input_0": x, "up": gate, "act-input_0": up,
                          "act": np.tanh(up), "out": np.tanh(up) * gate, "extra": x * 2})  # fmt: skip
    session = Session.of_dumps(Request(Path("a"), Path("b")), reference, candidate)
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.reference.layer == "gate"


def test_two_ports_with_names_of_their_own_are_not_paired_by_position() -> None:
    reference = arrays(**{"model-input_input_ids": np.arange(9), "model-output": noise(1, 9, 8)})
    candidate = arrays(**{"model-input_positions": np.arange(9)[::-1].copy(), "model-output": noise(1, 9, 8)})
    pairs = learned(candidate, reference).alignment.pairs
    assert [p.reference.port for p in pairs] == ["output"]


def test_a_layer_that_all_blocks_share_is_paired_by_its_calls() -> None:
    names = {f"h.{i}.act": f"h.0.act({i + 1})" if i else "h.0.act" for i in range(3)}
    values = {
        f"h.{i}.{part}": noise(10 * i + k, 9, 16) for i in range(3) for k, part in enumerate(("fc", "act", "out"))
    }
    reference = arrays(**{f"{name}-output": value for name, value in values.items()})
    candidate = arrays(**{f"{names.get(name, name)}-output": value for name, value in values.items()})
    pairs = {p.reference.name: p.candidate.name for p in learned(candidate, reference).alignment.pairs}
    assert [pairs[f"h.{i}.act-output"] for i in range(3)] == [
        "h.0.act-output",
        "h.0.act(2)-output",
        "h.0.act(3)-output",
    ]


def test_calls_of_experts_are_others_in_every_step() -> None:
    """In the first step the candidate sends tokens to one more expert, so that its later calls are one further on."""
    values = [noise(k, rows, 32) for k, rows in enumerate((4, 6, 3, 4, 6, 6))]
    calls = {(0, 0): (0, 1, 2), (0, 1): (0, 5, 1, 2), (1, 0): (3, 4, 5), (1, 1): (3, 4, 5)}
    dumps = []
    for side in range(2):
        entries = []
        for step in range(2):
            made = {"norm-output": noise(20 + step, 12, 32)}
            for number, k in enumerate(calls[step, side], 1):
                call = f"experts.act({number})" if number > 1 else "experts.act"
                made |= {f"{call}-input_0": values[k], f"{call}-output": np.tanh(values[k])}
            made["experts-output"] = noise(30 + step, 12, 32)
            entries += [one._replace(step=step) for one in arrays(**made).entries]
        dumps.append(Dump(Path("run"), "arrays", tuple(entries), ordered=True))
    for pair in learned(dumps[1], dumps[0]).alignment.pairs:
        if pair.reference.step == 1:
            assert pair.candidate.name == pair.reference.name


def test_a_shared_layer_is_not_blamed_for_an_error_right_after_it() -> None:
    """Names pair the first block's activation with the last call; what follows that call is wrong in the last block."""
    reference: dict[str, Array] = {}
    candidate: dict[str, Array] = {}
    x = y = noise(1, 1, 9, 16)
    for i in range(3):
        up, down = noise(10 + i, 16, 16), noise(20 + i, 16, 16)
        call = f"({i + 1})" if i else ""
        for values, given, act in ((reference, x, f"h.{i}.act"), (candidate, y, f"h.0.act{call}")):
            made = given @ up
            values |= {f"h.{i}.fc-input_0": given, f"h.{i}.fc-output": made}
            values |= {f"{act}-input_0": made, f"{act}-output": np.tanh(made)}
        ours, theirs = np.tanh(x @ up), np.tanh(y @ up)
        x, y = ours @ down, theirs @ down + (0.5 if i == 2 else 0.0) * noise(30, 1, 9, 16)
        reference |= {f"h.{i}.proj-input_0": ours, f"h.{i}.proj-output": x}
        candidate |= {f"h.{i}.proj-input_0": theirs, f"h.{i}.proj-output": y}
    session = Session.of_dumps(Request(Path("a"), Path("b")), arrays(**reference), arrays(**candidate))
    culprit = session.outcome(session.rows()).culprit
    assert culprit is not None and culprit.pair.reference.name == "h.2.proj-output"


def test_outlines_tell_numbers_that_count_blocks_from_those_of_names() -> None:
    ports = {f"h.{i}.{part}": ("input_0", "output") for i in range(3) for part in ("ln_1", "ln_2", "mlp.fc1")}
    found = outlines(ports)
    assert found["h.2.ln_1"].pieces == ("h.", ".ln_1") and found["h.2.ln_1"].numbers == (2,)
    trailing = outlines({f"{part}-{i}": ("output",) for i in range(3) for part in ("norm", "Qcur", "ffn_out", "l_out")})
    assert trailing["Qcur-1"].pieces == ("Qcur-", "")
