"""What a graph is given: by name, by position, from a prompt, from the reference, and what goes with tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from tensordiff.capture.engines.onnx.inputs import GraphInputs, make_inputs
from tensordiff.capture.engines.onnx.model import load
from tensordiff.capture.settings import PROMPT, Settings
from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import CaptureError
from tests.capture.engines.onnx.graphs import graph, saved, tensors
from tests.capture.models import run_here

Inputs = Mapping[str, tuple[int, Sequence[int | str | None] | None]]
INT, FLOAT, HALF, LOW, BOOL = (
    TensorProto.INT64, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.BOOL,
)  # fmt: skip
TOKENS: Inputs = {"input_ids": (INT, ["batch", "n"])}


def model(folder: Path, inputs: Inputs) -> Path:
    """A graph that takes these, and gives the first."""
    folder.mkdir(parents=True, exist_ok=True)
    first = next(iter(inputs))
    return saved(graph([helper.make_node("Identity", [first], ["y"])], inputs, ["y"]), folder / "m.onnx")


def asked(folder: Path, takes: Inputs, reference: Path | None = None, **settings: Any) -> GraphInputs:
    """What a graph that takes these is given."""
    found = None if reference is None else open_dump(reference)
    return make_inputs(load(str(model(folder, takes))), Settings(**settings), found)


def arrays(made: GraphInputs) -> dict[str, Any]:
    return {name: feed.array.tolist() for name, feed in made.feeds.items()}


def test_tokens_and_what_goes_with_them(tmp_path: Path) -> None:
    cache: list[int | str] = ["batch", 2, "past", 16]
    inputs: Inputs = {
        "past_key_values.0.key": (HALF, cache), "input_ids": (INT, ["batch", "n"]), "attention_mask": (INT, ["b", "m"]),
        "position_ids": (TensorProto.INT32, ["batch", "n"]), "token_type_ids": (INT, ["batch", "n"]),
        "use_cache_branch": (BOOL, [1]), "cache_position": (INT, ["n"]),
    }  # fmt: skip
    made = asked(tmp_path, inputs, input_ids=(7, 8, 9))
    assert made.token_ids == [7, 8, 9]
    past = made.feeds["past_key_values.0.key"].array
    assert (past.shape, past.dtype.name) == ((1, 2, 0, 16), "float16")
    assert made.feeds["position_ids"].array.dtype == np.int32
    assert {name: value for name, value in arrays(made).items() if "past" not in name} == {
        "input_ids": [[7, 8, 9]], "attention_mask": [[1, 1, 1]], "position_ids": [[0, 1, 2]],
        "token_type_ids": [[0, 0, 0]], "use_cache_branch": [False], "cache_position": [0, 1, 2],
    }  # fmt: skip


def test_an_empty_cache_goes_through_a_run(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["h"], to=FLOAT, name="/a/Cast"),
        helper.make_node("Concat", ["past.0.key", "h"], ["present.0.key"], axis=1, name="/a/Concat"),
    ]
    inputs: Inputs = {**TOKENS, "past.0.key": (FLOAT, ["batch", "past"])}
    path = saved(graph(nodes, inputs, ["present.0.key"]), tmp_path / "m.onnx")
    run_here(f"onnx:{path}", tmp_path / "d", input_ids=(5, 6))
    entries = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries}
    assert entries["model-input_past_key_values_0_key"].shape == (1, 0)
    assert entries["model-output_past_key_values_0_key"].tolist() == [[5.0, 6.0]]


def test_a_cache_that_is_given_counts(tmp_path: Path) -> None:
    inputs: Inputs = {
        **TOKENS, "past_key_values.0.key": (FLOAT, [1, 2, "past", 4]), "attention_mask": (INT, [1, "m"]),
        "position_ids": (INT, [1, "n"]),
    }  # fmt: skip
    given = tensors(tmp_path / "x.safetensors", **{"past_key_values.0.key": np.zeros((1, 2, 3, 4), np.float32)})
    made = arrays(asked(tmp_path, inputs, inputs=str(given), input_ids=(7, 8)))
    assert made["attention_mask"] == [[1] * 5]
    assert made["position_ids"] == [[3, 4]]


@pytest.mark.parametrize(
    ("more", "missing"),
    [
        ({"past_key_values.0.key": (FLOAT, ["batch", 2, 8, 16])}, r"past_key_values\.0\.key \(float32, \[batch, 2, 8"),
        ({"attention_mask": (FLOAT, ["b", 1, "n", "n"])}, r"attention_mask \(float32, \[b, 1, n, n\]\)"),
        ({"pixel_values": (FLOAT, [1, 3, None, None])}, r"pixel_values \(float32, \[1, 3, \?, \?\]\)"),
    ],
)
def test_what_cannot_be_made_up_is_asked_for(tmp_path: Path, more: Inputs, missing: str) -> None:
    with pytest.raises(CaptureError, match=f"m.onnx: wants {missing}.*--inputs FILE.safetensors"):
        asked(tmp_path, {**TOKENS, **more}, input_ids=(1, 2))


def test_tokens_that_are_missing_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"wants input_ids \(int64, \[batch, n\]\), .* give --input-ids 1,2,3, or"):
        asked(tmp_path, TOKENS)


def test_the_only_input_that_could_be_tokens_takes_them(tmp_path: Path) -> None:
    assert arrays(asked(tmp_path, {"words": (INT, ["n"])}, input_ids=(4, 5))) == {"words": [4, 5]}
    with pytest.raises(CaptureError, match=r"takes no tokens; its inputs are x \(float32, \[2\]\)"):
        asked(tmp_path, {"x": (FLOAT, [2])}, input_ids=(4, 5))


# --- files


def test_tensors_are_taken_by_name_or_the_only_one_as_it_comes(tmp_path: Path) -> None:
    inputs: Inputs = {"x": (FLOAT, [2]), "decoder_input_ids": (INT, [1, 1])}
    both: dict[str, Array] = {
        "decoder_input_ids": np.ones((1, 1), np.int64),
        "x": np.zeros(2, np.float32),
        "more": np.zeros(1),
    }
    made = asked(tmp_path, inputs, inputs=str(tensors(tmp_path / "x.safetensors", **both)))
    assert arrays(made) == {"x": [0, 0], "decoder_input_ids": [[1]]}
    assert made.token_ids is None
    assert "more is not asked for, and left out" in made.notes[0]
    one = tensors(tmp_path / "y.safetensors", whatever=np.ones(2, np.float32))
    assert arrays(asked(tmp_path, {"x": (FLOAT, [2])}, inputs=str(one))) == {"x": [1, 1]}
    with pytest.raises(CaptureError, match=r"has no input of m\.onnx; those are: x"):
        asked(tmp_path, inputs, inputs=str(one))


def dump(folder: Path, entries: Mapping[str, Array], **facts: Any) -> Path:
    with DumpWriter(folder, facts) as writer:
        for name, array in entries.items():
            writer.add(name, array)
    return folder


def test_a_dump_s_whole_model_s_inputs_are_taken(tmp_path: Path) -> None:
    x, y = np.zeros(2, np.float32), np.ones(2, np.float32)
    entries = {"model-input_0": x, "model-input_1": y, "model.fc-input_0": y, "model.fc-output": y}
    found = dump(tmp_path / "d", entries)
    inputs: Inputs = {"a": (FLOAT, [2]), "attention_mask": (FLOAT, [2])}
    assert arrays(asked(tmp_path, inputs, inputs=str(found))) == {"a": [0, 0], "attention_mask": [1, 1]}


def test_types_are_cast_and_others_refused(tmp_path: Path) -> None:
    given = str(tensors(tmp_path / "x.safetensors", x=np.array([1, 2], np.int64)))
    for kind, name in ((HALF, "float16"), (LOW, "bfloat16"), (TensorProto.INT32, "int32"), (FLOAT, "float32")):
        feed = asked(tmp_path, {"x": (kind, [2])}, inputs=given).feeds["x"]
        assert (feed.array.dtype.name, feed.array.astype(float).tolist()) == (name, [1, 2])
    given = str(tensors(tmp_path / "x.safetensors", x=np.array([1.5, 2], np.float32)))
    with pytest.raises(CaptureError, match=r"wants x \(int64, \[2\]\), and float32 was given"):
        asked(tmp_path, {"x": (INT, [2])}, inputs=given)


def test_low_precision_goes_in_and_comes_out_bit_by_bit(tmp_path: Path) -> None:
    path = model(tmp_path, {"x": (LOW, ["n"])})
    x = np.array([1.0, -2.5, np.inf, np.nan], np.float32)
    run_here(f"onnx:{path}", tmp_path / "d", inputs=str(tensors(tmp_path / "x.safetensors", x=x)))
    given = next(e for e in open_dump(tmp_path / "d").entries if e.name == "model-output_y")
    assert given.spec.dtype.name == "bfloat16"
    assert np.array_equal(given.read().astype(np.float32), x, equal_nan=True)


@pytest.mark.parametrize("shape", [(3,), (2, 2), ()])
def test_shapes_that_a_graph_does_not_take_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    given = str(tensors(tmp_path / "x.safetensors", x=np.ones(shape, np.float32)))
    with pytest.raises(CaptureError, match=r"wants x \(float32, \[2\]\), and the shape .* was given"):
        asked(tmp_path, {"x": (FLOAT, [2])}, inputs=given)


def test_a_single_number_stays_one(tmp_path: Path) -> None:
    given = str(tensors(tmp_path / "x.safetensors", x=np.array(2.0, np.float32)))
    assert asked(tmp_path, {"x": (FLOAT, [])}, inputs=given).feeds["x"].array.shape == ()


# --- prompts


def tokenizer(folder: Path) -> None:
    """A tokenizer of whole words, as transformers saves one."""
    words = {word: k for k, word in enumerate(["[UNK]", *dict.fromkeys(PROMPT.split()), "hello", "there"])}
    split = {"type": "WhitespaceSplit"}
    vocabulary = {"type": "WordLevel", "vocab": words, "unk_token": "[UNK]"}
    (folder / "tokenizer.json").write_text(
        json.dumps({"version": "1.0", "model": vocabulary, "pre_tokenizer": split, "added_tokens": []})
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


@pytest.mark.filterwarnings("ignore")  # transformers' own
@pytest.mark.parametrize("folder", [".", "onnx"])
def test_a_tokenizer_beside_the_model_reads_the_prompt(tmp_path: Path, folder: str) -> None:
    pytest.importorskip("transformers")
    tokenizer(tmp_path)
    inputs: Inputs = {**TOKENS, "attention_mask": (INT, ["batch", "n"])}
    made = asked(tmp_path / folder, inputs, prompt="hello there hello")
    assert made.token_ids is not None
    assert made.token_ids[0] == made.token_ids[2] != made.token_ids[1]
    assert made.prompt == "hello there hello"
    assert arrays(made)["attention_mask"] == [[1, 1, 1]]
    usual = asked(tmp_path / folder, inputs)
    assert usual.prompt == PROMPT
    assert len(usual.token_ids or ()) == len(PROMPT.split())
    assert usual.notes == (f"no prompt was given, so it is: {PROMPT}",)


def test_a_prompt_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="has no tokenizer beside it; give --input-ids 1,2,3"):
        asked(tmp_path, TOKENS, prompt="hello")
    with pytest.raises(CaptureError, match="--prompt and --input-ids: give one of them"):
        asked(tmp_path, TOKENS, prompt="hello", input_ids=(1,))


def test_a_tokenizer_without_transformers_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(CaptureError, match="has a tokenizer, which transformers reads, and that is not installed"):
        asked(tmp_path, TOKENS, prompt="hello")


# --- the reference


def test_what_the_reference_was_given_is_taken_where_nothing_is_said(tmp_path: Path) -> None:
    ids = np.array([[4, 5, 6]])
    reference = dump(
        tmp_path / "d", {"model-input_input_ids": ids, "model-input_attention_mask": np.array([[1, 1, 0]])},
        token_ids=[4, 5, 6], prompt="so it was",
    )  # fmt: skip
    inputs: Inputs = {**TOKENS, "attention_mask": (INT, ["batch", "n"])}
    made = asked(tmp_path, inputs, reference)
    assert arrays(made) == {"input_ids": [[4, 5, 6]], "attention_mask": [[1, 1, 0]]}
    assert made.prompt == "so it was"
    with pytest.raises(CaptureError, match=r"the tokens given are \[1, 2\], the reference was run on \[4, 5, 6\]"):
        asked(tmp_path, inputs, reference, input_ids=(1, 2))


def test_a_reference_s_token_ids_will_do(tmp_path: Path) -> None:
    reference = dump(tmp_path / "d", {"model.fc-output": np.ones(1)}, token_ids=[4, 5])
    assert arrays(asked(tmp_path, TOKENS, reference)) == {"input_ids": [[4, 5]]}
