"""Files that are no models, and models that reach for files that are not theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tensordiff.capture.engines.onnx.model import load
from tensordiff.dump import open_dump
from tensordiff.errors import CaptureError
from tests.capture.engines.onnx.graphs import graph, saved, tensors
from tests.capture.models import run_here
from tests.cli.command import Call, assert_one_sentence
from tests.cli.conftest import call as call

WEIGHTS = np.arange(300, dtype=np.float32)


def beside(folder: Path, location: str = "w.bin") -> Path:
    """A model whose weights lie beside it, or are said to lie elsewhere."""
    folder.mkdir(parents=True, exist_ok=True)
    model = graph(
        [helper.make_node("Add", ["x", "w"], ["y"], name="add")], {"x": (TensorProto.FLOAT, [300])}, ["y"],
        {"w": WEIGHTS},
    )  # fmt: skip
    path = folder / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    if location != "w.bin":
        model = onnx.load(path, load_external_data=False)
        next(item for item in model.graph.initializer[0].external_data if item.key == "location").value = location
        saved(model, path)
    return path


def test_weights_beside_a_model_are_used(tmp_path: Path) -> None:
    path = beside(tmp_path / "m")
    inputs = tensors(tmp_path / "x.safetensors", x=np.ones(300, np.float32))
    run_here(f"onnx:{path}", tmp_path / "d", inputs=str(inputs))
    assert np.array_equal(open_dump(tmp_path / "d").entries[-1].read(), WEIGHTS + 1)


@pytest.mark.parametrize("location", ["../secret", "sub/../../secret", "/etc/hostname", "link", ""])
def test_weights_outside_of_a_model_s_folder_are_not_opened(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    path = beside(tmp_path / "m", location)
    (tmp_path / "m" / "sub").mkdir()
    (tmp_path / "m" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(CaptureError, match="names weights outside of its folder"):
        load(str(path))


def test_a_hub_s_cache_of_links_is_one_folder(tmp_path: Path) -> None:
    made = beside(tmp_path / "made")
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1" / "onnx"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for name, blob in (("m.onnx", "aaa"), ("w.bin", "bbb")):
        (tmp_path / "made" / name).rename(blobs / blob)
        (snapshot / name).symlink_to(blobs / blob)
    assert not made.exists()
    inputs = tensors(tmp_path / "x.safetensors", x=np.ones(300, np.float32))
    run_here(f"onnx:{snapshot / 'm.onnx'}", tmp_path / "d", inputs=str(inputs))
    assert np.array_equal(open_dump(tmp_path / "d").entries[-1].read(), WEIGHTS + 1)


def test_weights_that_are_not_there_are_named(tmp_path: Path) -> None:
    path = beside(tmp_path / "m")
    (tmp_path / "m" / "w.bin").unlink()
    with pytest.raises(CaptureError, match=r"w\.bin: is not there, and m\.onnx has its weights in it"):
        load(str(path))


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x08", b"\x00" * 64, b"PK\x03\x04rest"])
def test_a_file_that_is_no_model_is_one_sentence(call: Call, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.onnx").write_bytes(content)
    assert_one_sentence(
        call("capture", f"onnx:{tmp_path / 'x.onnx'}", "-o", tmp_path / "d"), "x.onnx: is no ONNX model"
    )
    assert not (tmp_path / "d").exists()


def test_a_model_cut_short_is_one_sentence(tmp_path: Path) -> None:
    whole = beside(tmp_path / "m").read_bytes()
    for length in range(1, len(whole), 37):
        (tmp_path / "m" / "cut.onnx").write_bytes(whole[:length])
        with pytest.raises(CaptureError):
            run_here(f"onnx:{tmp_path / 'm' / 'cut.onnx'}", tmp_path / "d")


@pytest.mark.parametrize(("target", "found"), [("nothing.onnx", "there is no such file"), (".", "is a folder")])
def test_what_is_no_file_is_one_sentence(call: Call, tmp_path: Path, target: str, found: str) -> None:
    said = call("capture", f"onnx:{tmp_path / target}", "-o", tmp_path / "d")
    assert_one_sentence(said, f"{found}; write onnx:FILE")
