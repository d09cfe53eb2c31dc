"""What stands on disk after a dump was written, whatever happened meanwhile."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tensordiff.dump import open_dump
from tensordiff.dump.dtypes import DTYPES, Array
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.model import Dump, EntryKey, Origin, Spec
from tensordiff.dump.names import parse_name
from tensordiff.dump.native.manifest import record, shard_key
from tensordiff.dump.native.shards import raw
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.dump.readers.native import try_open
from tensordiff.errors import WriteError
from tests import processes

UNKNOWN_TO_SAFETENSORS = {"complex128", "float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"}


def opened(folder: Path) -> Dump:
    dump = try_open(DumpPath(folder))
    assert dump is not None
    return dump


def made_of(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Any bits at all: NaN with payloads, subnormals, negative zero."""
    count = int(np.prod(shape)) * DTYPES[dtype].itemsize
    bits = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count, np.uint8)
    if dtype.startswith(("float4", "float6")):
        bits &= 0xF
    return bits.view(DTYPES[dtype]).reshape(shape)


def bits_of(array: Array) -> bytes:
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).tobytes()


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.T,
    "strided": lambda a: a[..., ::2] if a.ndim else a,
    "reversed": lambda a: a[::-1] if a.ndim else a,
    "broadcast": lambda a: np.broadcast_to(a, (3, *a.shape)),
    "foreign": lambda a: a.astype(a.dtype.newbyteorder()),
    "read-only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
}


@settings(max_examples=60, deadline=None)
@given(
    tensors=st.lists(
        st.tuples(
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 4), max_size=4).map(tuple),
            st.sampled_from(sorted(LAYOUTS)),
        ),
        max_size=8,
    ),
    shard_bytes=st.sampled_from([1, 100, 1 << 20]),
    header_bytes=st.sampled_from([1, 300, 4096]),
)
def test_what_goes_in_comes_out_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    tensors: list[tuple[str, tuple[int, ...], str]],
    shard_bytes: int,
    header_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("dump")
    arrays = [LAYOUTS[how](made_of(dtype, shape, seed)) for seed, (dtype, shape, how) in enumerate(tensors)]
    with DumpWriter(folder, shard_bytes=shard_bytes, header_bytes=header_bytes) as writer:
        for index, array in enumerate(arrays):
            writer.add(f"layer.{index}-output", array)
    dump = opened(folder)
    assert [entry.layer for entry in dump.entries] == [f"layer.{index}" for index in range(len(arrays))]
    for entry, array, (dtype, _, _) in zip(dump.entries, arrays, tensors, strict=True):
        assert (entry.spec.shape, entry.spec.dtype.name) == (array.shape, dtype)
        assert bits_of(entry.read()) == bits_of(array)
    assert_safetensors_agrees(folder, dump)


def assert_safetensors_agrees(folder: Path, dump: Dump) -> None:
    """The library opens every finished shard and finds the same bits under the documented keys."""
    theirs: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            theirs |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert len(theirs) == len(dump)
    for entry in dump.entries:
        tensor = theirs[shard_key(entry.name, entry.step, entry.call)]
        assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == entry.read().tobytes()
        if entry.spec.dtype.name not in UNKNOWN_TO_SAFETENSORS:
            assert (tuple(tensor.shape), str(tensor.dtype)) == (
                entry.spec.shape,
                f"torch.{entry.spec.dtype.name}",
            )


def test_an_array_may_be_reused_at_once(tmp_path: Path) -> None:
    buffer = np.zeros(5, np.float32)
    with DumpWriter(tmp_path) as writer:
        for value in range(4):
            buffer[:] = value
            writer.add(f"a.{value}-output", buffer)
    assert [entry.read().tolist() for entry in opened(tmp_path).entries] == [[v] * 5 for v in range(4)]


def test_a_scattered_array_is_copied_out_in_pieces(tmp_path: Path) -> None:
    array = np.arange(1 << 24, dtype=np.float32).reshape(2, 2048, 4096).transpose(2, 0, 1)
    tracemalloc.start()
    with DumpWriter(tmp_path) as writer:
        writer.add("wide-output", array)
        writer.add("tall-output", array[None])
        peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < array.nbytes / 2
    assert all(np.array_equal(np.squeeze(entry.read()), array) for entry in opened(tmp_path).entries)


def test_names_steps_and_calls_do_not_collide(tmp_path: Path) -> None:
    said = [
        ("a-output", 0, None), ("a-output", 1, None), ("a(2)-output", 0, None), ("a-output", 0, 2),
        ("a-output#step=1#call=1", 0, None), ("__metadata__", 0, None), ("", 0, None),
        ("Ω \ud800\x1b[31m", 0, None),
    ]  # fmt: skip
    with DumpWriter(tmp_path) as writer:
        for index, (name, step, call) in enumerate(said):
            writer.add(name, np.full(3, index), step=step, call=call)
    dump = opened(tmp_path)
    assert [(e.name, e.step) for e in dump.entries] == [(name, step) for name, step, _ in said]
    assert [e.call for e in dump.entries][:4] == [1, 1, 2, 2]
    assert [e.read()[0] for e in dump.entries] == list(range(len(said)))
    assert_safetensors_agrees(tmp_path, dump)


def test_the_same_tensor_twice_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with DumpWriter(tmp_path) as writer:
        writer.add("a-output", np.ones(2))
        with pytest.raises(WriteError, match="a-output was written already for step 0, call 1"):
            writer.add("a-output", np.zeros(2))
        with pytest.raises(WriteError, match="impossible step"):
            writer.add("b-output", np.zeros(2), step=-1)
        with pytest.raises(WriteError, match="c-output is of type object"):
            writer.add("c-output", np.array([{}]))
    dump = opened(tmp_path)
    assert [entry.read().tolist() for entry in dump.entries] == [[1.0, 1.0]]
    assert not dump.interrupted


def begin(writer: DumpWriter, name: str, array: Array) -> memoryview:
    writer.begin(EntryKey(name, 0, 1), Spec(array.shape, array.dtype), Origin())
    return raw(array)


def test_many_are_written_and_told_of_together(tmp_path: Path) -> None:
    arrays = {f"a.{k}-output": np.full(k, k, np.int16) for k in range(2000)}
    with DumpWriter(tmp_path, header_bytes=64 << 10) as writer:
        for name, array in arrays.items():
            writer.extend(begin(writer, name, array))
        writer.flush()
        assert len(opened(tmp_path)) < 2000
        writer.log()
        assert len(opened(tmp_path)) == 2000
    dump = opened(tmp_path)
    assert {entry.name: entry.read().tolist() for entry in dump.entries} == {k: v.tolist() for k, v in arrays.items()}
    assert_safetensors_agrees(tmp_path, dump)


def test_a_tensor_whose_bytes_never_came_is_left_out(tmp_path: Path) -> None:
    with DumpWriter(tmp_path) as writer:
        for name in "abcd":
            data = begin(writer, f"{name}-output", np.full(50, ord(name)))
            writer.extend(data[:80] if name in "bd" else data)
    dump = opened(tmp_path)
    assert [(entry.layer, set(entry.read().tolist())) for entry in dump.entries] == [("a", {97}), ("c", {99})]
    assert_safetensors_agrees(tmp_path, dump)


def test_names_of_any_length_and_kind_fit_into_the_header(tmp_path: Path) -> None:
    names = [kind * 5000 for kind in ("a", '"', "\n", "Ω", "\ud800", "\U0001f600")]
    with DumpWriter(tmp_path, header_bytes=1) as writer:
        for name in names:
            writer.add(name, np.ones((1,) * 60), step=2**31 - 1, call=2**31 - 1)
    dump = opened(tmp_path)
    assert [entry.name for entry in dump.entries] == names
    assert_safetensors_agrees(tmp_path, dump)


@given(text=st.text(st.characters(), max_size=20), shape=st.lists(st.integers(0, 2**40), max_size=4).map(tuple))
def test_a_record_is_what_json_would_make_of_it(text: str, shape: tuple[int, ...]) -> None:
    origin = Origin(text, f"{text}.py", 7, (text, "b"))
    spelled = record(EntryKey(f"{text}-output", 3, 2), Spec(shape, DTYPES["bfloat16"]), origin, 5, 9, "s")
    assert spelled == json.dumps(json.loads(spelled), separators=(",", ":"))
    assert json.loads(spelled) == {
        "name": f"{text}-output", **dict(zip(("layer", "port"), parse_name(f"{text}-output"), strict=False)),
        "call": 2, "step": 3, "module_class": text, "source_file": f"{text}.py", "source_line": 7,
        "injected": [text, "b"], "shape": list(shape), "dtype": "bfloat16", "shard": "s", "bytes": [5, 9],
    }  # fmt: skip


def test_the_manifest_says_what_it_was_told(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, facts={"source": "hf:tiny", "token_ids": [3, 1]}) as writer:
        writer.add("a-input_x", np.ones(1), module_class="Linear", source_file="m.py", source_line=7, injected=["r"])
        writer.add("b-output", np.ones((2, 3), np.float16))
        writer.add_facts(device="cpu", source="hf:tiny@2")
    said = json.loads((tmp_path / "manifest.json").read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "tensors-00000.safetensors"]
    assert said["schema"] == "tensordiff.dump/1"
    assert (said["source"], said["token_ids"], said["device"], said["prompt"]) == (
        "hf:tiny@2",
        [3, 1],
        "cpu",
        None,
    )
    first, second = said["entries"]
    assert [first[key] for key in ("layer", "port", "call", "step")] == ["a", "input_x", 1, 0]
    assert [first[key] for key in ("module_class", "source_file", "source_line")] == ["Linear", "m.py", 7]
    assert (first["injected"], second["injected"]) == (["r"], None)
    begin, end = second["bytes"]
    assert (second["shape"], second["dtype"], end - begin) == ([2, 3], "float16", 12)
    shard = (tmp_path / second["shard"]).read_bytes()
    assert shard[begin:end] == np.ones(6, np.float16).tobytes()


@pytest.mark.parametrize("facts", [{"tokens": [1]}, {"prompt": b"x"}, {"notes": float("nan")}])
def test_facts_have_fixed_keys_and_are_json(tmp_path: Path, facts: dict[str, object]) -> None:
    with pytest.raises(WriteError, match="fact"):
        DumpWriter(tmp_path / "dump", facts=facts)
    assert not (tmp_path / "dump").exists()


def test_an_exception_leaves_a_flagged_dump_and_passes(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), DumpWriter(tmp_path, facts={"prompt": "hi"}) as writer:
        writer.add("a-output", np.arange(3))
        raise KeyboardInterrupt
    dump = opened(tmp_path)
    assert dump.interrupted
    assert dump.facts == {"prompt": "hi"}
    assert [entry.read().tolist() for entry in dump.entries] == [[0, 1, 2]]
    assert_safetensors_agrees(tmp_path, dump)


def test_nothing_is_written_into_what_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(WriteError, match="is not empty"), DumpWriter(tmp_path, overwrite=overwrite):
            pass
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(WriteError, match="is not empty"), DumpWriter(tmp_path, overwrite=True):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["manifest.json", "notes.txt"]


def test_an_earlier_dump_goes_only_when_told(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, shard_bytes=1) as writer:
        for index in range(3):
            writer.add(f"a.{index}-output", np.ones(2))
    with pytest.raises(WriteError, match="holds a dump already"), DumpWriter(tmp_path):
        pass
    assert len(opened(tmp_path)) == 3
    with DumpWriter(tmp_path, overwrite=True) as writer:
        writer.add("b-output", np.zeros(2))
        assert opened(tmp_path).interrupted
    assert [entry.name for entry in opened(tmp_path).entries] == ["b-output"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteError, match="cannot be written"), DumpWriter(tmp_path / "file" / "dump"):
        pass


def test_a_closed_writer_takes_nothing_more(tmp_path: Path) -> None:
    with DumpWriter(tmp_path) as writer:
        writer.add("a-output", np.ones(2))
    with pytest.raises(WriteError, match="closed"):
        writer.add("b-output", np.ones(2))


ENDLESS = """
import sys, numpy as np
from tensordiff.dump.native.writer import DumpWriter
with DumpWriter(sys.argv[1], facts={"source": "child"}, shard_bytes=40_000_000) as writer:
    for index in range(10**9):
        writer.add(f"layer.{index}-output", np.full(300_001, index, np.float32))
        print(index, flush=True)
"""


def test_a_killed_capture_can_be_read_up_to_there(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS, str(tmp_path)]
    with processes.started(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = -1
        while said < 50:
            said = int(child.stdout.readline())
        child.kill()
    assert child.returncode == -signal.SIGKILL
    dump = opened(tmp_path)
    assert dump.interrupted
    assert dump.facts == {"source": "child"}
    assert len(dump) > said
    for index, entry in enumerate(dump.entries):
        assert entry.name == f"layer.{index}-output"
        assert np.array_equal(entry.read(), np.full(300_001, index, np.float32))


FULL = """
import json, sys, numpy as np
from pathlib import Path
from safetensors.numpy import load_file
from tensordiff.dump.folders import DumpPath
from tensordiff.dump.readers.native import try_open
from tensordiff.dump.native.writer import DumpWriter
from tensordiff.errors import WriteError
folder, said = Path(sys.argv[1]), []
with DumpWriter(folder, header_bytes=4096) as writer:
    for index in range(100):
        try:
            writer.add(f"layer.{index}-output", np.full(10_000, index, np.float32))
        except WriteError as error:
            said.append(str(error))
dump = try_open(DumpPath(folder))
right = sum(bool((entry.read() == index).all()) for index, entry in enumerate(dump.entries))
assert len(load_file(folder / "tensors-00000.safetensors")) == len(dump)
files = sorted(path.name for path in folder.iterdir())
print(json.dumps([said, dump.interrupted, len(dump), right, len(dump.problems), files]))
"""


def check_full(output: str, least: int) -> None:
    """The first refusal is the sentence, the rest repeat; what was written before it is there and right."""
    said, interrupted, entries, right, problems, files = json.loads(output)
    assert "no room left" in said[0] and f"after {entries} tensors, {entries * 40_000:,} bytes" in said[0]
    assert all("earlier tensor could not be written" in sentence for sentence in said[1:])
    assert len(said) == 100 - entries
    assert interrupted and right == entries >= least
    assert problems == 0
    assert files == ["entries.jsonl", "tensors-00000.safetensors"]


def test_a_limit_on_file_size_is_a_sentence(tmp_path: Path) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    command = [sys.executable, "-c", FULL, str(tmp_path)]
    check_full(processes.run(command, check=True, preexec_fn=limit).stdout, 24)


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        processes.run([*inside, mount], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system cannot be mounted here")
    command = [*inside, f'{mount} && exec "$0" "$@"', sys.executable, "-c", FULL, str(tmp_path / "dump")]
    check_full(processes.run(command, check=True).stdout, 15)


def test_what_a_killed_writer_left_is_cleared_with_its_dump(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d") as writer:
        writer.add("a", np.ones(3, np.float32))
    (tmp_path / "d" / ".tensordiff-0123456789abcdef").write_text("{")
    with DumpWriter(tmp_path / "d", overwrite=True) as writer:
        writer.add("b", np.ones(3, np.float32))
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["manifest.json", "tensors-00000.safetensors"]


def test_nothing_planted_under_the_manifest_s_old_temporary_name_is_followed_or_in_the_way(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "d") as writer:
        (tmp_path / "d" / "manifest.json.partial").symlink_to(tmp_path / "victim")
        writer.add("a", np.ones(3, np.float32))
    assert not (tmp_path / "victim").exists()
    assert [entry.name for entry in open_dump(tmp_path / "d").entries] == ["a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of another user's")
def test_a_folder_that_is_a_link_of_another_user_s_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "d"
    link.symlink_to("real")
    os.lchown(link, 65534, 65534)
    with pytest.raises(WriteError, match="is a link that another user made"), DumpWriter(link):
        pass
    assert list((tmp_path / "real").iterdir()) == []
