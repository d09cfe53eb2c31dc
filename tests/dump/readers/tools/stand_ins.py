"""Small dumps as each tool writes them, made by hand from what the real ones hold."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from tests.making import numbers, save

A, B = numbers(24).reshape(4, 6), numbers(24, seed=1).reshape(4, 6)


def pt(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)
    return path


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def debugger(folder: Path) -> Path:
    """``layers.1`` is left out of the tree, as the tool does by default, and not out of the folder."""
    folder.mkdir(parents=True)

    def leaf(name: str) -> dict[str, object]:
        numbers_ = {
            key: f"tensor({value:.4e})" for key, value in (("mean", 0.5), ("std", 1.0), ("min", -1), ("max", 2))
        }
        return {"shape": "torch.Size([4, 6])", "dtype": "torch.float32", "value": f"./{name}.safetensors", **numbers_}

    def node(path: str) -> dict[str, object]:
        return {
            "module_path": path,
            "inputs": {"args": [leaf(f"{path}_inputs_args_0")], "kwargs": {}},
            "outputs": leaf(f"{path}_outputs"),
        }

    children = [node(f"Tiny.layers.{i}.mlp") for i in (0, 2)]
    tree = {"module_path": "Tiny", "inputs": {"args": [], "kwargs": {}}, "children": [*children, node("Tiny.head")]}
    (folder / "Tiny_debug_tree_FULL_TENSORS.json").write_text(json.dumps(tree))
    for i in range(3):
        save(folder / f"Tiny.layers.{i}.mlp_inputs_args_0.safetensors", {"data": A + i})
        save(folder / f"Tiny.layers.{i}.mlp_outputs.safetensors", {"data": B + i})
    save(folder / "Tiny.head_inputs_args_0.safetensors", {"data": A})
    save(folder / "Tiny.head_outputs.safetensors", {"data": B})
    save(folder / "Tiny_outputs_logits.safetensors", {"data": B})
    return folder


def debugger_summary(folder: Path) -> Path:
    debugger(folder)
    for path in folder.glob("*.safetensors"):
        path.unlink()
    (folder / "Tiny_debug_tree_FULL_TENSORS.json").rename(folder / "Tiny_debug_tree_SUMMARY.json")
    return folder


def msprobe(folder: Path, *, values: bool = True, ranks: int = 1) -> Path:
    for rank in range(ranks):
        at = folder / "step0" / f"rank{rank}"
        data = {}
        for key, array in (("Module.mlp.act_fn.SiLU.forward.0", A), ("Module.mlp.TinyMLP.forward.0", B)):
            leaf: dict[str, object] = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 6]}
            leaf |= {"Max": float(array.max()), "Min": float(array.min())}
            leaf |= {"Mean": float(array.mean()), "Norm": float(np.linalg.norm(array))}
            if values:
                leaf["data_name"] = f"{key}.output.0.pt"
                pt(at / "dump_tensor_data" / f"{key}.output.0.pt", tensor(array))
            data[key] = {"input_args": [], "input_kwargs": {}, "output": [leaf], "parameters": {}}
        at.mkdir(parents=True, exist_ok=True)
        task = "tensor" if values else "statistics"
        (at / "dump.json").write_text(json.dumps({"task": task, "level": "L0", "data": data}))
        (at / "construct.json").write_text(json.dumps({"Module.mlp.TinyMLP.forward.0": None, **dict.fromkeys(data)}))
    return folder


def padiff(folder: Path) -> Path:
    (folder / "tensors").mkdir(parents=True)
    np.save(folder / "tensors" / "tensor_0.npy", A)
    np.save(folder / "tensors" / "tensor_1.npy", B)

    def node(name: str, route: str, step: int, number: int, children: list[object]) -> dict[str, object]:
        outputs = [{"path": f"/elsewhere/tensors/tensor_{number}.npy"}]
        return {"name": name, "route": route, "fwd_outputs": outputs, "metas": {"fwd_step": step}, "children": children}

    tree = node("Net", "net", 2, 1, [node("SiLU", "net.act", 0, 0, [])])
    (folder / "report.json").write_text(json.dumps({"framework": "torch", "tree": [tree]}))
    return folder


def polygraphy(folder: Path) -> Path:
    folder.mkdir(parents=True)

    def array(values: np.ndarray) -> dict[str, object]:
        file = io.BytesIO()
        np.save(file, values)
        inner = {"array": base64.b64encode(file.getvalue()).decode(), "polygraphy_class": "ndarray"}
        return {"values": inner, "polygraphy_class": "LazyArray"}

    runs = [["trt", [{"outputs": {"z": array(A), "a": array(B)}}, {"outputs": {"z": array(B), "a": array(A)}}]]]
    (folder / "out.json").write_text(json.dumps({"lst": runs, "polygraphy_class": "RunResults"}))
    return folder


def sglang(folder: Path, *, ranks: int = 1) -> Path:
    for rank in range(ranks):
        half = 3 * rank, 3 * rank + 3
        for index, (name, array, dims) in enumerate(
            (
                ("embed", A, "t h"),
                ("q_proj", B[:, half[0] : half[1]] if ranks > 1 else B, "t h[tp]"),
            )
        ):
            stem = f"step=0___rank={rank}___dump_index={index}___name={name}___recompute_status=disabled"
            suffix = "___layer_id=0" if name == "q_proj" else ""
            meta = {"name": name, "dims": dims} if ranks > 1 else {"name": name}
            pt(folder / f"{stem}{suffix}.pt", {"value": tensor(array), "meta": meta})
    return folder


def sglang_passes(folder: Path) -> Path:
    inside = folder / "TP0_PP0_Rank0_pid7"
    pt(inside / "Pass00000.pt", {"model.embed_tokens": tensor(A), "model.layers.0": tensor(B)})
    pt(inside / "Pass00001.pt", {"logits": tensor(A), "model.embed_tokens": tensor(B), "model.layers.0": tensor(A)})
    return folder


def megatron(folder: Path) -> Path:
    chunk = {"layers.0.mlp/input0": tensor(A), "layers.0.mlp/output0": tensor(B), "layers.0.mlp/mask": tensor(A)}
    pt(folder / "activations" / "iter_0000007" / "mp_rank_00_000.pth", {"model_chunk0": chunk})
    pt(folder / "activations" / "iter_0000007" / "mp_rank_00_001.pth", {"model_chunk0": chunk})
    return folder


def trtllm(folder: Path) -> Path:
    for name, array in (
        ("1.TinyModel-1.Embedding-output.1", A),
        ("1.TinyModel-2.TinyDecoderLayer-1.TinyMLP-1.Linear-output.1", B),
        ("1.TinyModel-2.TinyDecoderLayer-1.TinyMLP-2.SiLU-input.input", B),
        ("1.TinyModel-2.TinyDecoderLayer-1.TinyMLP-2.SiLU-output.input", B),
        ("1.TinyModel-2.TinyDecoderLayer-1.TinyMLP-2.SiLU-output.1", A),
        ("1.TinyModel-2.TinyDecoderLayer-1.TinyMLP-3.Linear-output.1", B),
        ("1.TinyModel-2.TinyDecoderLayer-1.TinyMLP-4.Linear-output.1", A),
        ("2.Linear-output.1", B),
    ):
        pt(folder / "rank0" / f"{name}.pt", tensor(array))
    return folder


def vllm_hidden(folder: Path) -> Path:
    folder.mkdir(parents=True)
    both = np.stack((A, B), axis=1)
    save(folder / "req-1.safetensors", {"hidden_states": both, "token_ids": np.arange(4)}, ordered=False)
    return folder


def vllm_logger(folder: Path) -> Path:
    for module, port, array in (
        ("model", "outputs", A),
        ("model.mlp", "inputs_0", A),
        ("model.mlp", "outputs", B),
        ("model.mlp_1", "outputs", A),
    ):
        pt(folder / "step_3" / module / f"{port}_cuda:0.pt", tensor(array))
    (folder / "step_3" / "module_calls.txt").write_text("model\nmodel.mlp\nmodel.mlp\n")
    return folder


def flax(folder: Path) -> Path:
    folder.mkdir(parents=True)

    def packed(array: np.ndarray) -> msgspec.msgpack.Ext:
        return msgspec.msgpack.Ext(1, msgspec.msgpack.encode((array.shape, array.dtype.name, array.tobytes())))

    half = {"__msgpack_chunked_array__": True, "shape": {"0": 4, "1": 6}}
    half |= {"chunks": {"0": packed(B.reshape(-1)[:12]), "1": packed(B.reshape(-1)[12:])}}
    tree = {"intermediates": {"layers_0": {"mlp": {"__call__": {"0": packed(A), "1": half}}}}}
    (folder / "acts.msgpack").write_bytes(msgspec.msgpack.encode(tree))
    return folder


def gguf(folder: Path, kind: int = 0, data: bytes | None = None, width: int = 6) -> Path:
    folder.mkdir(parents=True, exist_ok=True)

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    rows = [("blk.0.ffn_up.weight", (width, 4 if data is None else 1), kind, 0)]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(rows), 2)
    head += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    head += text("tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("b")
    for name, shape, code, offset in rows:
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)
    head += bytes(-len(head) % 32)
    (folder / "tiny.gguf").write_bytes(head + (A.tobytes() if data is None else data))
    return folder


def llamacpp_log(folder: Path) -> Path:
    folder.mkdir(parents=True)

    def shown(name: str, operation: str, array: np.ndarray) -> str:
        rows, columns = array.shape
        lines = [
            f"common_debug_cb_eval:  {name} = (f32)  {operation}(x{{1, 1, 1, 1}}, }}) = {{{columns}, {rows}, 1, 1}}"
        ]
        lines += [f"            [ {', '.join(f'{value:12.4f}' for value in row)} ]," for row in array]
        return "\n".join([*lines, f"    sum = {array.sum():.6f}", ""])

    warm_up = shown("embd", "GET_ROWS", A[:2]) + shown("ffn_gate-0", "MUL_MAT", B[:2])
    (folder / "run.log").write_text(
        "loading\n" + warm_up + shown("embd", "GET_ROWS", A) + shown("ffn_gate-0", "MUL_MAT", B)
    )
    return folder


def llamacpp_logits(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "llamacpp-tiny.bin").write_bytes(A.tobytes())
    (folder / "llamacpp-tiny-tokens.bin").write_bytes(np.arange(4, dtype=np.int32).tobytes())
    return folder


def rank_files(folder: Path) -> Path:
    """One tensor that both hold, one in halves whose sum and one in halves whose rows are another's."""
    for rank, part in ((0, A[:2]), (1, A[2:])):
        held = {"x": tensor(A), "rows": tensor(part), "whole": tensor(B), "partial": tensor(B * (0.25 + rank / 2))}
        pt(folder / f"acts_rank{rank}.pt", held)
    return folder


STAND_INS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "debugger": (debugger, "transformers-debugger"),
    "debugger_summary": (debugger_summary, "transformers-debugger"),
    "msprobe": (msprobe, "msprobe"),
    "msprobe_statistics": (lambda folder: msprobe(folder, values=False), "msprobe"),
    "padiff": (padiff, "padiff"),
    "polygraphy": (polygraphy, "polygraphy"),
    "sglang": (sglang, "sglang"),
    "sglang_ranks": (lambda folder: sglang(folder, ranks=2), "sglang"),
    "sglang_passes": (sglang_passes, "sglang"),
    "megatron": (megatron, "megatron"),
    "trtllm": (trtllm, "tensorrt-llm"),
    "vllm_hidden": (vllm_hidden, "vllm"),
    "vllm_logger": (vllm_logger, "vllm"),
    "flax": (flax, "flax"),
    "gguf": (gguf, "gguf"),
    "llamacpp_log": (llamacpp_log, "llama.cpp"),
    "llamacpp_logits": (llamacpp_logits, "llama.cpp"),
    "rank_files": (rank_files, "ranks"),
}
