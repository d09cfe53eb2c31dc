"""A reimplementation by hand, with no name in common, against Hugging Face: the culprit with no rule written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tests.align.learn.hand_port import HandPort
from tests.capture.models import run_here

IDS = (3, 14, 15, 92, 65, 35, 89)
LAYERS = 4


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch = pytest.importorskip("torch")
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, tie_word_embeddings=False, rope_theta=10_000.0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0 if weight.dim() > 1 else 1.0)
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_here(f"hf:{checkpoint}", tmp_path_factory.mktemp("dumps") / "hf", input_ids=IDS).path


def session(reference: Path, checkpoint: Path, folder: Path, bug_in: int | None) -> Session:
    from safetensors.numpy import load_file, save_file

    port = HandPort(load_file(checkpoint / "model.safetensors"), heads=4, groups=2, bug_in=bug_in)
    port(list(IDS), LAYERS)
    # Safetensors sorts by name, so the order is in the names' numbers alone, as it often is.
    save_file({name: np.ascontiguousarray(value) for name, value in port.seen.items()}, folder / "port.safetensors")
    return Session.open(Request(reference, folder / "port.safetensors"))


def test_a_port_without_a_bug_agrees(reference: Path, checkpoint: Path, tmp_path: Path) -> None:
    found = session(reference, checkpoint, tmp_path, None)
    outcome = found.outcome(found.rows())
    assert outcome.culprit is None and outcome.verdict == "agrees", outcome.reasons
    assert len(found.alignment.candidate_orphans) == 0


def test_a_wrong_rope_is_found_in_its_block(reference: Path, checkpoint: Path, tmp_path: Path) -> None:
    found = session(reference, checkpoint, tmp_path, 2)
    culprit = found.outcome(found.rows()).culprit
    assert culprit is not None
    assert culprit.pair.reference.name == "model.model.layers.2.self_attn.o_proj-input_0"
    assert culprit.pair.candidate.name == "net.blk03.att.mixed"
    assert {pair.by for pair in found.alignment.pairs} == {"learned"}
    fused = [rule.map for rule in found.dumps.learned.rules if rule.map.reference.startswith("cat(")]
    assert [rule.candidate for rule in fused] == ["net.blk{i+1:02}.att.wkv"]
