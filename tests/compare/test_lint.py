"""What is wrong with comparing two dumps: each finding with a pair that has it and a twin that has not."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tensordiff.align import align
from tensordiff.compare.lint import lint_pair
from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.lint import Finding
from tensordiff.dump.model import MemoryTensor, Origin, entry
from tests.making import SAMPLES, Tensors, numbers, save, save_npy, truncate, write

A = numbers(9, 4)
IDS = np.arange(9)
EMBED = "model.embed_tokens"


def findings(reference: Path, candidate: Path) -> list[Finding]:
    ref, cand = open_dump(reference), open_dump(candidate)
    return list(lint_pair(ref, cand, align(ref, cand)))


def of(tmp_path: Path, reference: Tensors, candidate: Tensors) -> list[Finding]:
    return findings(write(tmp_path / "r", reference), write(tmp_path / "c", candidate))


def test_the_samples_are_sound() -> None:
    assert findings(SAMPLES / "reference", SAMPLES / "candidate") == []


def test_every_finding_says_why_and_what_to_do(tmp_path: Path) -> None:
    ids, output = f"{EMBED}-input_0", f"{EMBED}-output"
    found = of(tmp_path, {ids: IDS, output: A}, {ids: IDS + 1, output: -A})
    assert len(found) == 2
    for finding in found:
        assert min(len(finding.why), len(finding.do)) > 10


def test_one_dump_on_both_sides(tmp_path: Path) -> None:
    """It agrees with itself, which is right, and no word on the model."""
    dump, link = write(tmp_path / "r", {"a": A}), tmp_path / "link"
    link.symlink_to(dump)
    for other in (dump, link):
        [finding] = findings(dump, other)
        assert (finding.level, finding.what) == ("warning", "reference and candidate are the same file or folder")


# --- token ids ----------------------------------------------------------------------------------


def test_other_token_ids(tmp_path: Path) -> None:
    [finding] = of(tmp_path, {f"{EMBED}-input_0": IDS}, {f"{EMBED}-input_0": IDS[::-1]})
    assert (finding.level, finding.what) == ("error", "the two runs did not get the same token ids")
    assert finding.where == f"{EMBED}-input_0"


@pytest.mark.parametrize("candidate", [IDS, IDS.astype(np.int32), IDS[None]])
def test_the_same_token_ids_in_another_type_or_shape(tmp_path: Path, candidate: Array) -> None:
    assert of(tmp_path, {f"{EMBED}-input_0": IDS}, {f"{EMBED}-input_0": candidate}) == []


@pytest.mark.parametrize(
    "name",
    [
        "model.transformer.wte-input_0", "gpt_neox.embed_in-input_0", "tok_embeddings-input_0", "shared-input_0",
        "backbone.embeddings-input_0", "embedding-input_input", "input_ids", "model.input_ids",
        "model-input_input_ids", "model-input_ids", "model-input_tokens",
    ],
)  # fmt: skip
def test_token_ids_by_any_name(tmp_path: Path, name: str) -> None:
    [finding] = of(tmp_path, {name: IDS}, {name: IDS[::-1]})
    assert (finding.level, finding.where) == ("error", name)
    assert of(tmp_path / "same", {name: IDS}, {name: IDS}) == []


def test_the_token_ids_of_a_later_call(tmp_path: Path) -> None:
    first, second = f"{EMBED}-input_0", f"{EMBED}(2)-input_0"
    [finding] = of(tmp_path, {first: IDS, second: IDS[:1]}, {first: IDS, second: IDS[1:2]})
    assert (finding.level, finding.where) == ("error", second)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_positions-input_position_ids", "transformer.wpe-input_0", "bert.token_type_embeddings-input_0",
        "bert.embeddings-input_token_type_ids", "model.rotary_emb-input_position_ids", "tokens", "router.ids",
    ],
)  # fmt: skip
def test_other_ids_are_no_token_ids(tmp_path: Path, name: str) -> None:
    assert of(tmp_path, {name: IDS}, {name: IDS + 1}) == []


def test_other_token_ids_in_the_manifests(tmp_path: Path) -> None:
    reference = write(tmp_path / "r", {"a": A}, token_ids=[1, 2, 3])
    [finding] = findings(reference, write(tmp_path / "c", {"a": A}, token_ids=[1, 2, 4]))
    assert (finding.level, finding.where) == ("error", "the manifests")
    assert findings(reference, write(tmp_path / "d", {"a": A}, token_ids=[1, 2, 3])) == []
    assert findings(reference, write(tmp_path / "e", {"a": A})) == []


# --- the embedding ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens", "bert.embeddings.word_embeddings", "transformer.wte", "gpt_neox.embed_in",
        "model.tok_embeddings",
    ],
)  # fmt: skip
def test_an_embedding_that_differs_by_a_bit(tmp_path: Path, name: str) -> None:
    other = A.copy()
    other[3, 2] = np.nextafter(other[3, 2], np.float32(9))
    [finding] = of(tmp_path, {f"{name}-output": A}, {f"{name}-output": other})
    assert (finding.level, finding.where) == ("warning", f"{name}-output")
    assert "not bit-equal" in finding.what


@pytest.mark.parametrize("name", ["backbone.embeddings", "shared"])
def test_a_table_is_known_by_what_goes_in(tmp_path: Path, name: str) -> None:
    given = {f"{name}-input_0": IDS}
    [finding] = of(tmp_path / "ids", {**given, f"{name}-output": A}, {**given, f"{name}-output": -A})
    assert (finding.level, finding.where) == ("warning", f"{name}-output")
    inside = {**given, f"{name}.norm-output": A}
    assert of(tmp_path / "whole", {**inside, f"{name}-output": A}, {**inside, f"{name}-output": -A}) == []
    assert of(tmp_path / "patches", {f"{name}-output": A}, {f"{name}-output": -A}) == []


def test_a_table_is_known_by_its_class() -> None:
    def side(kind: str, array: Array) -> Dump:
        made = entry("m.embeddings", MemoryTensor(array))._replace(origin=Origin(kind))
        return Dump(Path("held"), "held", (made,), ordered=True)

    def levels(kind: str) -> list[str]:
        ref, cand = side(kind, A), side(kind, -A)
        return [finding.level for finding in lint_pair(ref, cand, align(ref, cand))]

    assert levels("Embedding") == ["warning"]
    assert levels("BertEmbeddings") == []


def test_an_embedding_that_is_equal(tmp_path: Path) -> None:
    odd = A.copy()
    odd[0, 0] = np.nan
    assert of(tmp_path, {f"{EMBED}-output": odd}, {f"{EMBED}-output": odd[None]}) == []


def test_an_embedding_of_another_type_is_left_to_measuring(tmp_path: Path) -> None:
    assert of(tmp_path, {f"{EMBED}-output": A}, {f"{EMBED}-output": A.astype(ml_dtypes.bfloat16)}) == []


def test_an_embedding_that_cannot_be_read_is_left_to_measuring(tmp_path: Path) -> None:
    reference = save_npy(tmp_path / "r", {f"{EMBED}-output": A, f"{EMBED}-input_0": IDS})
    candidate = save_npy(tmp_path / "c", {f"{EMBED}-output": A, f"{EMBED}-input_0": IDS})
    for path in candidate.iterdir():
        truncate(path)
    assert {finding.level for finding in findings(reference, candidate)} == {"note"}


# --- pairs --------------------------------------------------------------------------------------


def test_nothing_paired(tmp_path: Path) -> None:
    [finding] = of(tmp_path, {"a": A}, {"b": A})
    assert (finding.level, finding.what) == ("error", "nothing could be paired")


def test_too_little_paired(tmp_path: Path) -> None:
    many = dict.fromkeys("abcd", A)
    [finding] = of(tmp_path, many, {"a": A, "x": A, "y": A})
    assert (finding.level, finding.what) == ("warning", "only 25% of the outputs found a partner")
    assert of(tmp_path / "enough", many, {"a": A, "b": A, "y": A}) == []


# --- each side by itself ------------------------------------------------------------------------


def test_what_is_wrong_with_one_side_names_it(tmp_path: Path) -> None:
    reference = save(tmp_path / "r.safetensors", {"a": A}, ordered=False)
    [finding] = findings(reference, write(tmp_path / "c", {"a": A}))
    assert (finding.level, finding.where) == ("note", "reference")


def test_a_file_that_cannot_be_read_names_side_and_file(tmp_path: Path) -> None:
    reference = save(tmp_path / "r" / "a.safetensors", {"a": A}).parent
    save(tmp_path / "c" / "a.safetensors", {"a": A})
    truncate(save(tmp_path / "c" / "b.safetensors", {"b": A}))
    [finding] = findings(reference, tmp_path / "c")
    assert (finding.level, finding.where) == ("error", "candidate: b.safetensors")


# --- phases -------------------------------------------------------------------------------------


def test_a_prefill_step_is_not_a_decode_step(tmp_path: Path) -> None:
    found = of(tmp_path, {f"{EMBED}-output": A}, {f"{EMBED}-output": A[-1:]})
    assert ("error", "the reference saw 9 tokens, the candidate one") in [(f.level, f.what) for f in found]


def test_another_count_of_tokens_is_said_and_not_an_embedding_that_differs(tmp_path: Path) -> None:
    [finding] = of(tmp_path, {f"{EMBED}-output": A}, {f"{EMBED}-output": A[:5]})
    assert (finding.level, finding.what) == ("warning", "the reference saw 9 tokens, the candidate 5")


@pytest.mark.parametrize("tokens", [A, A[-1:]])
def test_two_steps_of_one_phase(tmp_path: Path, tokens: Array) -> None:
    assert of(tmp_path, {f"{EMBED}-output": tokens}, {f"{EMBED}-output": tokens[None]}) == []
