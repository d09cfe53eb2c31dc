from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from tensordiff.dump import open_dump
from tensordiff.errors import BadFile
from tests import processes
from tests.dump.readers.torch.torch_samples import BASE, bits, check, save


def hook_dump(folder: Path, names: list[str], text: str | None = None) -> dict[str, torch.Tensor]:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: torch.full((2,), float(i)) for i, name in enumerate(names)}
    for name, tensor in tensors.items():
        save(tensor, folder / f"{name}.pt")
    (folder / "tensor_names.txt").write_text("\n".join(names) + "\n" if text is None else text)
    return tensors


def test_hooked_folder_stands_in_the_order_it_ran(tmp_path: Path) -> None:
    tensors = hook_dump(tmp_path, ["model.b-output", "model.a(2)-input_0", "model.a-output_10", "model-output"])
    dump = open_dump(tmp_path)
    check(dump, tensors)
    assert (dump.format, dump.ordered, dump.problems) == ("torch-hook", True, ())
    assert dump.entries[1][1:4] == ("model.a", "input_0", 2)


def test_hooked_folders_of_steps(tmp_path: Path) -> None:
    first = hook_dump(tmp_path / "0", ["b", "a"])
    second = hook_dump(tmp_path / "1", ["b", "a"])
    dump = open_dump(tmp_path)
    assert (dump.format, dump.ordered) == ("torch-hook", True)
    assert [(e.step, e.name) for e in dump.entries] == [(0, "b"), (0, "a"), (1, "b"), (1, "a")]
    assert [e.read().tobytes() for e in dump.entries] == [bits(t) for t in (*first.values(), *second.values())]


def test_names_and_files_that_do_not_agree(tmp_path: Path) -> None:
    tensors = hook_dump(tmp_path, ["c", "x10", "x9", "a"], "gone\nc\r\n\na\nc\n")
    dump = open_dump(tmp_path)
    check(dump, {name: tensors[name] for name in ("c", "a", "x9", "x10")})
    assert [p.file for p in dump.problems] == ["gone.pt", "c.pt"]
    assert "2 times" in dump.problems[1].sentence


def test_names_that_the_file_system_could_not_hold(tmp_path: Path) -> None:
    tensors = hook_dump(tmp_path, ["a_b_c", "blocks[_0]-output", "d_e"], "blocks[/0]-output\na/b:c\nd_e\nd e\n")
    dump = open_dump(tmp_path)
    expected = {"blocks[/0]-output": "blocks[_0]-output", "a/b:c": "a_b_c", "d_e": "d_e"}
    check(dump, {name: tensors[file] for name, file in expected.items()})
    assert [p.file for p in dump.problems] == ["d e.pt"]


def test_flat_folder_stands_in_natural_order(tmp_path: Path) -> None:
    tensors = {f"l{i}": torch.full((1,), float(i)) for i in (1, 2, 9, 10, 11)}
    for name, tensor in reversed(tensors.items()):
        save(tensor, tmp_path / f"{name}{'.pth' if name == 'l9' else '.PT'}")
    dump = open_dump(tmp_path)
    assert (dump.format, dump.ordered, dump.problems) == ("torch", False, ())
    check(dump, tensors)


def test_files_of_one_stem_are_told_apart(tmp_path: Path) -> None:
    for file in ("a.pt", "a.pth", "b.pt"):
        save(BASE, tmp_path / file)
    assert [e.name for e in open_dump(tmp_path).entries] == ["a.pt", "a.pth", "b"]


def test_files_of_one_stem_that_no_list_names_are_told_apart(tmp_path: Path) -> None:
    hook_dump(tmp_path, ["a"])
    for file in ("b.pt", "b.pth", "a.pth"):
        save(BASE, tmp_path / file)
    assert [e.name for e in open_dump(tmp_path).entries] == ["a", "a.pth", "b.pt", "b.pth"]


def test_bin_files_count_if_the_first_is_torchs(tmp_path: Path) -> None:
    for folder, first in (("yes", None), ("no", b"raw floats")):
        (tmp_path / folder).mkdir()
        save(BASE, tmp_path / folder / "x.pt")
        save(BASE, tmp_path / folder / "y.bin")
        if first is None:
            save(BASE, tmp_path / folder / "a.bin", _use_new_zipfile_serialization=False)
        else:
            (tmp_path / folder / "a.bin").write_bytes(first)
    check(open_dump(tmp_path / "yes"), {"a": BASE, "x": BASE, "y": BASE})
    check(open_dump(tmp_path / "no"), {"x": BASE})


def test_files_of_several_tensors_are_one_dump(tmp_path: Path) -> None:
    save({"a": BASE, "b": BASE[0]}, tmp_path / "many.pt")
    save({"only": BASE}, tmp_path / "one.pt")
    dump = open_dump(tmp_path)
    check(dump, {"a": BASE, "b": BASE[0], "only": BASE})
    assert not dump.ordered and not dump.problems
    save({"nothing": 1}, tmp_path / "none.pt")
    assert [problem.file for problem in open_dump(tmp_path).problems if problem.is_unread] == ["none.pt"]


def test_files_with_the_same_names_in_them_are_told_apart(tmp_path: Path) -> None:
    save({"a": BASE, "b": BASE[0]}, tmp_path / "x.pt")
    save({"a": BASE[0], "b": BASE}, tmp_path / "y.pt")
    check(open_dump(tmp_path), {"x.a": BASE, "x.b": BASE[0], "y.a": BASE[0], "y.b": BASE})


def test_a_folder_with_one_file_of_several_tensors_is_that_file(tmp_path: Path) -> None:
    save({"b": BASE, "a": BASE[0]}, tmp_path / "Pass00000.pt")
    dump = open_dump(tmp_path)
    check(dump, {"b": BASE, "a": BASE[0]})
    assert (dump.path, dump.ordered) == (tmp_path, True)


def test_sglang_files_are_one_tensor_each(tmp_path: Path) -> None:
    stem = "step=0___rank=0___dump_index={}___name=layers.0"
    for i in (2, 10):
        meta = {"step": 0, "name": "layers.0", "world": {"tp_rank": 0}, "extra": torch.ones(1)}
        save({"value": BASE[i % 4], "meta": meta}, tmp_path / f"{stem.format(i)}.pt")
    check(open_dump(tmp_path), {"layers.0-output": BASE[2], "layers.0(2)-output": BASE[2]})
    check(open_dump(tmp_path / f"{stem.format(2)}.pt"), {stem.format(2): BASE[2]})


def test_files_with_the_same_pickle_keep_their_own_numbers(tmp_path: Path) -> None:
    tensors = {f"t{i}": torch.randn(9, 256) for i in range(20)}
    for name, tensor in tensors.items():
        save(tensor, tmp_path / f"{name}.pt")
    check(open_dump(tmp_path), tensors)


def test_a_file_is_known_by_what_it_holds(tmp_path: Path) -> None:
    for name, new in (("dump", True), ("model.layers.0-output", False), ("x" * 200, True)):
        path = save(BASE, tmp_path / name, _use_new_zipfile_serialization=new)
        check(open_dump(path), {name: BASE})


def test_opening_a_folder_opens_few_files(tmp_path: Path, opens: list[str]) -> None:
    for i in range(20_000):
        os.close(os.open(tmp_path / f"layers.{i}.mlp-output.pt", os.O_CREAT))
    opens.clear()
    dump = open_dump(tmp_path)
    assert len(dump) == 20_000
    assert len(opens) <= 3
    with pytest.raises(BadFile, match=r"layers\.19999\.mlp-output\.pt: is empty"):
        _ = dump.entries[-1].spec


def mapped(folder: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(folder))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts mappings as Linux lists them")
def test_a_folders_files_are_mapped_only_while_read(tmp_path: Path) -> None:
    for i in range(5):
        save(torch.randn(200, 200), tmp_path / f"{i}.pt")
    dump = open_dump(tmp_path)
    arrays = [e.read() for e in dump.entries if e.spec]
    assert mapped(tmp_path) == 5
    del arrays
    assert mapped(tmp_path) == 0


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = save({"a": BASE, "b": torch.ones(3, dtype=torch.bfloat16)}, tmp_path / "x.pt")
    code = (
        "import sys; from tensordiff.dump import open_dump\n"
        f"print(sum(float(e.read().sum()) for e in open_dump({str(path)!r}).entries))\n"
        "sys.exit('torch' in sys.modules)"
    )
    ran = processes.run([sys.executable, "-c", code])
    assert (ran.returncode, ran.stderr, float(ran.stdout)) == (0, "", float(BASE.sum()) + 3)
