"""The same small run as each tool writes it: other ranks, steps, nestings and encodings than the stand-ins have."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from tensordiff.dump.dtypes import Array
from tests.dump.readers.tools.stand_ins import pt, tensor
from tests.dump.readers.tools.tiny_run import BLOCKS, CULPRIT, Port, TinyRun, split, tiny_run
from tests.making import save, save_npy, write

Make = Callable[[Path, bool], Path]


class Variant(NamedTuple):
    """How to make a dump of the run, what it is read as, and what is found in it."""

    make: Make
    format: str
    tensors: int
    culprit: str = CULPRIT
    """Against its own clean side; the end of the layer's name may be cut off."""
    ours: str | None = None
    """Against our own capture, where it is another."""
    agrees: bool = True
    """Whether the clean side can be said to agree with itself: it holds values."""
    agrees_with_ours: bool = True
    """Whether it can be said to agree with our own capture: it holds most of it."""
    in_order: bool = True
    """Whether layers stand as they ended; some dicts are filled as they begin."""


VARIANTS: dict[str, Variant] = {}


def variant(format_: str, tensors: int, **about: Any) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        VARIANTS[make.__name__] = Variant(make, format_, tensors, **about)
        return make

    return add


def t(array: Array) -> torch.Tensor:
    return tensor(array)


OUTPUTS, ALL = 29, 58
"""How many layers have outputs, and how many tensors there are with their inputs."""


# --- SGLang --------------------------------------------------------------------------------------


def sglang_name(layer: str, port: str) -> tuple[str, str]:
    """The name and what follows it: the number of the block."""
    _, _, rest = layer.partition("layers.")
    if rest:
        number, _, inside = rest.partition(".")
        name = inside or "layer"
        return (
            f"{name}_output" if not inside else name
        ) if port == "output" else f"{name}_input", f"___layer_id={number}"
    return layer.removeprefix("model.") + ("" if port == "output" else "_input"), ""


def sglang_files(
    folder: Path, rank: int, parts: Iterable[tuple[Port, Array, str | None]], step: int = 0, **about: object
) -> None:
    for index, ((layer, port), array, dims) in enumerate(parts, 1):
        name, suffix = sglang_name(layer, port)
        meta = {"name": name, "world_rank": rank, **about} | ({"dims": dims} if dims else {})
        stem = f"step={step}___rank={rank}___dump_index={index}___name={name}___recompute_status=disabled{suffix}"
        pt(folder / f"{stem}.pt", {"value": t(array), "meta": meta})


def outputs_of(run: TinyRun) -> list[Port]:
    return [at for at in run.tensors if at[1] == "output"]


@variant("sglang", OUTPUTS)
def sglang_tp2_without_notes(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        sglang_files(folder, rank, ((at, run.part(at, rank, 2), None) for at in outputs_of(run)), world_size=2)
    return folder


@variant("sglang", OUTPUTS)
def sglang_dp2_tp2(folder: Path, bug: bool) -> Path:
    """Four ranks: two replicas of two halves."""
    run = tiny_run(bug=bug)
    for rank in range(4):
        parts = (
            (at, run.part(at, rank % 2, 2), "b s h[tp]" if run.split_of(at) == "columns" else "b s h")
            for at in outputs_of(run)
        )
        info = {"tp_rank": rank % 2, "tp_size": 2, "dp_rank": rank // 2, "dp_size": 2}
        sglang_files(folder, rank, parts, world_size=4, sglang_parallel_info=info)
    return folder


@variant("sglang", OUTPUTS)
def sglang_partial_sums(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        parts = (
            (
                at, run.part(at, rank, 2, sums=True),
                "b s h[tp]" if run.split_of(at) == "columns"
                else "b s h[tp:partial]" if at[0].endswith(("o_proj", "down_proj")) else "b s h",
            )
            for at in outputs_of(run)
        )  # fmt: skip
        sglang_files(folder, rank, parts, world_size=2)
    return folder


@variant("sglang", OUTPUTS)
def sglang_pp2(folder: Path, bug: bool) -> Path:
    """Each stage counts its files from 1."""
    run = tiny_run(bug=bug)
    for rank, at_rank in enumerate(stages(outputs_of(run))):
        parts = ((at, run.tensors[at], None) for at in at_rank)
        sglang_files(folder, rank, parts, world_size=2, sglang_parallel_info={"pp_rank": rank, "pp_size": 2})
    return folder


def stages(ports: list[Port]) -> tuple[list[Port], list[Port]]:
    first = [at for at in ports if "layers.0" in at[0] or "embed" in at[0]]
    return first, [at for at in ports if at not in first]


@variant("sglang", 2 * OUTPUTS)
def sglang_two_steps_below_a_date(folder: Path, bug: bool) -> Path:
    for step in range(2):
        run = tiny_run(bug=bug, seed=step)
        parts = ((at, run.tensors[at], None) for at in outputs_of(run))
        sglang_files(folder / "dump_20260101_120000", 0, parts, step)
    return folder


@variant("sglang", ALL)
def sglang_hooked(folder: Path, bug: bool) -> Path:
    for index, ((layer, port), array) in enumerate(tiny_run(bug=bug).tensors.items(), 1):
        place = "output" if port == "output" else "inputs.0"
        stem = f"step=0___rank=0___dump_index={index}___name=non_intrusive__{layer}.{place}___recompute_status=disabled"
        pt(folder / f"{stem}.pt", {"value": t(array), "meta": {}})
    return folder


@variant("sglang", OUTPUTS, culprit=f"{CULPRIT}.grad", ours=CULPRIT)
def sglang_gradients(folder: Path, bug: bool) -> Path:
    """The gradients come back in the other order; here they are the values of the run."""
    run = tiny_run(bug=bug)
    for index, (layer, array) in enumerate(run.outputs.items(), 1):
        stem = f"step=0___rank=0___dump_index={index}___name=grad__{layer}___recompute_status=disabled"
        pt(folder / f"{stem}.pt", {"value": t(array), "meta": {}})
    return folder


@variant("sglang", 2 * OUTPUTS)
def sglang_passes_tp2(folder: Path, bug: bool) -> Path:
    """Two passes; the logits of each lie in the file after it."""
    for rank in range(2):
        held: dict[str, object] = {}
        for number in range(2):
            run = tiny_run(bug=bug, seed=number)
            parts = {layer: t(run.part((layer, "output"), rank, 2)) for layer in run.outputs}
            logits = parts.pop("lm_head")
            file = f"TP{rank}_PP0_Rank{rank}_pid{70 + rank}/Pass{number:05d}.pt"
            pt(folder / file, {**held, **parts})
            held = {"lm_head": logits}
        pt(folder / f"TP{rank}_PP0_Rank{rank}_pid{70 + rank}/Pass00002.pt", held)
    return folder


@variant("sglang", OUTPUTS)
def sglang_passes_pp2(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank, at_rank in enumerate(stages(outputs_of(run))):
        parts = {layer: t(run.tensors[layer, port]) for layer, port in at_rank}
        pt(folder / f"TP0_PP{rank}_Rank{rank}_pid{70 + rank}/Pass00000.pt", parts)
    return folder


# --- msprobe -------------------------------------------------------------------------------------

_CLASSES = {"act_fn": "SiLU", "mlp": "LlamaMLP", "norm": "LlamaRMSNorm", "self_attn": "LlamaAttention"}


def msprobe_rank(
    at: Path, tensors: dict[Port, Array], *, bug: bool, prefix: str = "Module", suffix: str = ".pt", values: bool = True
) -> None:
    data: dict[str, Any] = {}
    (at / "dump_tensor_data").mkdir(parents=True, exist_ok=True)
    began: list[str] = []
    for (layer, port), array in tensors.items():
        class_ = _CLASSES.get(layer.rpartition(".")[2], "Linear")
        class_ = "GELU" if bug and layer.endswith(CULPRIT) else class_
        key = f"{prefix}.{layer}.{class_}.forward.0"
        began += [key] if key not in began else []
        leaf: dict[str, object] = {"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape)}
        leaf |= {"Max": float(array.max()), "Min": float(array.min())}
        leaf |= {"Mean": float(array.mean()), "Norm": float(np.linalg.norm(array.astype(np.float64)))}
        place = "output" if port == "output" else "input"
        if values:
            leaf["data_name"] = f"{key}.{place}.0{suffix}"
            path = at / "dump_tensor_data" / str(leaf["data_name"])
            if suffix == ".pt":
                pt(path, t(array))
            else:
                np.save(path, array)
        about = data.pop(key, {"input_args": [], "input_kwargs": {}, "output": []})
        about["output" if port == "output" else "input_args"].append(leaf)
        data[key] = about  # as they ended
    task = "tensor" if values else "statistics"
    (at / "dump.json").write_text(json.dumps({"task": task, "level": "L0", "dump_data_dir": "/gone", "data": data}))
    (at / "construct.json").write_text(json.dumps(dict.fromkeys(began)))


@variant("msprobe", ALL)
def msprobe_tp2(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        parts = {at: run.part(at, rank, 2) for at in run.tensors}
        msprobe_rank(folder / "step0" / f"rank{rank}", parts, bug=bug)
    return folder


@variant("msprobe", ALL)
def msprobe_pp2(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank, at_rank in enumerate(stages(list(run.tensors))):
        msprobe_rank(folder / "step0" / f"rank{rank}", {at: run.tensors[at] for at in at_rank}, bug=bug)
    return folder


@variant("msprobe", 2 * ALL)
def msprobe_cells_of_two_steps(folder: Path, bug: bool) -> Path:
    """MindSpore: cells, and files of numpy."""
    for step in range(2):
        at = folder / f"step{step}" / "rank0"
        msprobe_rank(at, tiny_run(bug=bug, seed=step).tensors, bug=bug, prefix="Cell", suffix=".npy")
    return folder


@variant("msprobe", ALL)
def msprobe_one_rank_folder(folder: Path, bug: bool) -> Path:
    msprobe_rank(folder, tiny_run(bug=bug).tensors, bug=bug)
    return folder


@variant("msprobe", ALL, agrees=False, agrees_with_ours=False)
def msprobe_statistics_of_two_ranks(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        msprobe_rank(folder / "step0" / f"rank{rank}", run.tensors, bug=bug, values=False)
    return folder


@variant("msprobe", OUTPUTS)
def msprobe_saved_by_name(folder: Path, bug: bool) -> Path:
    """``PrecisionDebugger.save``: level debug, keys that count, and the leaf itself below each."""
    at = folder / "step0" / "rank0"
    (at / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Any] = {}
    for layer, array in tiny_run(bug=bug).outputs.items():
        file = f"{layer}.0.debug.tensor.pt"
        pt(at / "dump_tensor_data" / file, t(array))
        leaf = {"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape), "data_name": file}
        data[f"{layer}.0.debug"] = leaf
    whole = {"task": "tensor", "level": "debug", "framework": "pytorch", "dump_data_dir": "/gone", "data": data}
    (at / "debug.json").write_text(json.dumps(whole))
    return folder


# --- Polygraphy ----------------------------------------------------------------------------------


def run_results(path: Path, runners: dict[str, list[dict[str, object]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    runs = [
        [name, [{"outputs": outputs, "runtime": 0.1, "runner_name": name} for outputs in iterations]]
        for name, iterations in runners.items()
    ]
    path.write_text(json.dumps({"lst": runs, "polygraphy_class": "RunResults"}))
    return path


def npy_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    np.savez(file, array)
    return file.getvalue()


def pt_bytes(array: Array) -> bytes:
    file = io.BytesIO()
    torch.save(t(array), file)
    return file.getvalue()


def as_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def polygraphy_of(encode: Callable[[Array], object]) -> Make:
    def make(folder: Path, bug: bool) -> Path:
        iterations = [
            {layer: encode(array) for layer, array in tiny_run(bug=bug, seed=step).outputs.items()} for step in range(2)
        ]
        run_results(folder / "outputs.json", {"trt-runner-N0": iterations})
        return folder

    return make


VARIANTS["polygraphy_iterations"] = Variant(
    polygraphy_of(lambda a: {"values": {"array": as_base64(npy_bytes(a)), "polygraphy_class": "ndarray"}}),
    "polygraphy", 2 * OUTPUTS,
)  # fmt: skip
VARIANTS["polygraphy_latin_1"] = Variant(
    polygraphy_of(lambda a: {"array": npy_bytes(a).decode("latin-1"), "polygraphy_class": "ndarray"}),
    "polygraphy", 2 * OUTPUTS,
)  # fmt: skip
VARIANTS["polygraphy_npz"] = Variant(
    polygraphy_of(lambda a: {"array": as_base64(npz_bytes(a)), "polygraphy_class": "ndarray"}),
    "polygraphy", 2 * OUTPUTS,
)  # fmt: skip
VARIANTS["polygraphy_npz_latin_1"] = Variant(
    polygraphy_of(lambda a: {"array": npz_bytes(a).decode("latin-1"), "polygraphy_class": "ndarray"}),
    "polygraphy", 2 * OUTPUTS,
)  # fmt: skip
VARIANTS["polygraphy_torch"] = Variant(
    polygraphy_of(lambda a: {"values": {"tensor": as_base64(pt_bytes(a)), "polygraphy_class": "Tensor"}}),
    "polygraphy", 2 * OUTPUTS,
)  # fmt: skip


# --- Megatron ------------------------------------------------------------------------------------


def megatron_chunk(tensors: dict[Port, Array]) -> dict[str, object]:
    return {f"{layer}/{'output0' if port == 'output' else 'input0'}": t(a) for (layer, port), a in tensors.items()}


@variant("megatron", ALL)
def megatron_tp2(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        chunk = megatron_chunk({at: run.part(at, rank, 2) for at in run.tensors})
        pt(folder / "activations" / "iter_0000001" / f"mp_rank_{rank:02d}.pth", {"model_chunk0": chunk})
    return folder


def megatron_stages(folder: Path, bug: bool, *, local: bool, tp: int = 1) -> Path:
    run = tiny_run(bug=bug)
    for stage, at_stage in enumerate(stages(list(run.tensors))):
        for rank in range(tp):
            names = {
                (layer.replace("layers.1", "layers.0") if local else layer, port): (layer, port)
                for layer, port in at_stage
            }
            chunk = megatron_chunk(
                {name: run.part(at, rank, tp) if tp > 1 else run.tensors[at] for name, at in names.items()}
            )
            pt(folder / "activations" / "iter_0000001" / f"mp_rank_{rank:02d}_{stage:03d}.pth", {"model_chunk0": chunk})
    return folder


@variant("megatron", ALL)
def megatron_pp2(folder: Path, bug: bool) -> Path:
    return megatron_stages(folder, bug, local=True)


@variant("megatron", ALL)
def megatron_pp2_numbered_throughout(folder: Path, bug: bool) -> Path:
    return megatron_stages(folder, bug, local=False)


@variant("megatron", ALL)
def megatron_tp2_pp2(folder: Path, bug: bool) -> Path:
    return megatron_stages(folder, bug, local=True, tp=2)


@variant("megatron", ALL)
def megatron_ep2(folder: Path, bug: bool) -> Path:
    """Expert ranks without pipeline stages: the second number is theirs."""
    run = tiny_run(bug=bug)
    for rank in range(2):
        pt(folder / "iter_0000001" / f"mp_rank_00_{rank:03d}.pth", {"model_chunk0": megatron_chunk(run.tensors)})
    return folder


@variant("megatron", ALL)
def megatron_two_chunks(folder: Path, bug: bool) -> Path:
    """Interleaved stages: each chunk of the model counts its layers from 0."""
    run = tiny_run(bug=bug)
    first, second = stages(list(run.tensors))
    chunks = {
        "model_chunk0": megatron_chunk({at: run.tensors[at] for at in first}),
        "model_chunk1": megatron_chunk(
            {(at[0].replace("layers.1", "layers.0"), at[1]): run.tensors[at] for at in second}
        ),
    }
    pt(folder / "activations" / "iter_0000001" / "mp_rank_00.pth", chunks)
    return folder


# --- TensorRT-LLM --------------------------------------------------------------------------------

_PLACES = {
    "model.embed_tokens": "1.LlamaModel-1.Embedding", "model": "1.LlamaModel", "model.norm": "1.LlamaModel-4.RMSNorm",
    "lm_head": "2.LMHead",
    "input_layernorm": "1.RMSNorm", "self_attn": "2.LlamaAttention", "self_attn.q_proj": "2.LlamaAttention-1.Linear",
    "self_attn.k_proj": "2.LlamaAttention-2.Linear", "self_attn.v_proj": "2.LlamaAttention-3.Linear",
    "self_attn.o_proj": "2.LlamaAttention-4.Linear", "post_attention_layernorm": "3.RMSNorm", "mlp": "4.GatedMLP",
    "mlp.gate_proj": "4.GatedMLP-1.Linear", "mlp.act_fn": "4.GatedMLP-2.SiLU", "mlp.up_proj": "4.GatedMLP-3.Linear",
    "mlp.down_proj": "4.GatedMLP-4.Linear",
}  # fmt: skip


def trtllm_stem(layer: str) -> str:
    _, _, rest = layer.partition("layers.")
    number, _, inside = rest.partition(".")
    if not rest:
        return _PLACES[layer]
    block = f"1.LlamaModel-{2 + int(number)}.LlamaDecoderLayer"
    return f"{block}-{_PLACES[inside]}" if inside else block


@variant("tensorrt-llm", ALL)
def trtllm_tp2(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        for at in run.tensors:
            kind = "output.1" if at[1] == "output" else "input.0"
            pt(folder / f"rank{rank}" / f"{trtllm_stem(at[0])}-{kind}.pt", t(run.part(at, rank, 2)))
    return folder


# --- vLLM ----------------------------------------------------------------------------------------


@variant("vllm", 2 * ALL)
def vllm_logger_of_two_steps(folder: Path, bug: bool) -> Path:
    for step in range(2):
        run = tiny_run(bug=bug, seed=step)
        began = list(dict.fromkeys(layer for layer, _ in run.tensors))
        for (layer, port), array in run.tensors.items():
            file = "outputs_cuda_0.pt" if port == "output" else "inputs_0_cuda_0.pt"
            pt(folder / f"step_{step}" / layer / file, t(array))
        (folder / f"step_{step}" / "module_calls.txt").write_text("\n".join(began) + "\n")
    return folder


@variant("vllm", ALL)
def vllm_logger_of_two_ranks(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        at_rank = folder / f"rank{rank}" / "step_0"
        began = list(dict.fromkeys(layer for layer, _ in run.tensors))
        for at in run.tensors:
            file = f"{'outputs' if at[1] == 'output' else 'inputs_0'}_cuda:{rank}.pt"
            pt(at_rank / at[0] / file, t(run.part(at, rank, 2)))
        (at_rank / "module_calls.txt").write_text("\n".join(began) + "\n")
    return folder


@variant("vllm", 2 * 4, culprit="hidden_states.2", ours="layers.1", agrees_with_ours=False)
def vllm_hidden_of_two_requests(folder: Path, bug: bool) -> Path:
    for request in range(2):
        run = tiny_run(bug=bug, seed=request)
        states = [run.tensors["model.layers.0", "input_0"], *(run.outputs[f"model.layers.{i}"] for i in range(BLOCKS))]
        both = np.stack([state[0] for state in states], axis=1)
        ids = run.tensors["model.embed_tokens", "input_0"][0]
        save(folder / f"cmpl-{request}.safetensors", {"hidden_states": both, "token_ids": ids}, ordered=False)
        (folder / f"cmpl-{request}.safetensors.lock").write_text("")
    return folder


# --- TransformerLens -----------------------------------------------------------------------------


def lens_names(run: TinyRun) -> dict[str, Array]:
    tokens = run.outputs["model.embed_tokens"].shape[1]
    found = {"hook_embed": run.outputs["model.embed_tokens"]}
    for i in range(BLOCKS):
        block, hf = f"blocks.{i}", f"model.layers.{i}"
        out = run.outputs
        found |= {
            f"{block}.hook_resid_pre": run.tensors[hf, "input_0"],
            f"{block}.ln1.hook_normalized": out[f"{hf}.input_layernorm"],
            f"{block}.attn.hook_q": out[f"{hf}.self_attn.q_proj"].reshape(1, tokens, 4, 8),
            f"{block}.attn.hook_k": out[f"{hf}.self_attn.k_proj"].reshape(1, tokens, 2, 8),
            f"{block}.attn.hook_v": out[f"{hf}.self_attn.v_proj"].reshape(1, tokens, 2, 8),
            f"{block}.attn.hook_z": run.tensors[f"{hf}.self_attn.o_proj", "input_0"].reshape(1, tokens, 4, 8),
            f"{block}.hook_attn_out": out[f"{hf}.self_attn"],
            f"{block}.hook_resid_mid": run.tensors[hf, "input_0"] + out[f"{hf}.self_attn"],
            f"{block}.ln2.hook_normalized": out[f"{hf}.post_attention_layernorm"],
            f"{block}.mlp.hook_pre": out[f"{hf}.mlp.gate_proj"],
            f"{block}.mlp.hook_pre_linear": out[f"{hf}.mlp.up_proj"],
            f"{block}.mlp.hook_post": run.tensors[f"{hf}.mlp.down_proj", "input_0"],
            f"{block}.hook_mlp_out": out[f"{hf}.mlp"],
            f"{block}.hook_resid_post": out[hf],
        }
    return found | {"ln_final.hook_normalized": run.outputs["model.norm"]}


@variant("torch", 30, culprit="blocks.1.mlp.hook_post", ours="layers.1.mlp")
def tlens_dict(folder: Path, bug: bool) -> Path:
    return pt(folder / "cache.pt", {name: t(a) for name, a in lens_names(tiny_run(bug=bug)).items()})


@variant("npz", 30, culprit="blocks.1.mlp.hook_post", ours="layers.1.mlp")
def tlens_npz(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "cache.npz", **lens_names(tiny_run(bug=bug)))  # type: ignore[arg-type]
    return folder / "cache.npz"


# --- PaDiff --------------------------------------------------------------------------------------


@variant("padiff", OUTPUTS)
def padiff_tree(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    (folder / "tensors").mkdir(parents=True)
    nodes: dict[str, dict[str, Any]] = {}
    root: dict[str, Any] = {"name": "LlamaForCausalLM", "route": "net", "fwd_outputs": [], "metas": {}, "children": []}
    names = sorted({".".join(layer.split(".")[: i + 1]) for layer in run.outputs for i in range(layer.count(".") + 1)})
    for name in names:
        route = "net." + ".".join(name.split("."))
        for i in range(BLOCKS):
            route = route.replace(f".layers.{i}", f".layers[{i}]")
        node = {"name": "Layer", "route": route, "fwd_outputs": [], "bwd_grads": [], "metas": {}, "children": []}
        nodes[name] = node
        parent = nodes.get(name.rpartition(".")[0], root)
        parent["children"].append(node)
    for step, (layer, array) in enumerate(run.outputs.items()):
        np.save(folder / "tensors" / f"tensor_{step}.npy", array)
        nodes[layer]["fwd_outputs"] = [{"path": f"C:\\dumps\\tensors\\tensor_{step}.npy"}]
        nodes[layer]["metas"] = {"fwd_step": step}
    (folder / "report.json").write_text(json.dumps({"framework": "paddle", "tree": [root]}))
    return folder


# --- flax, JAX and MLX ---------------------------------------------------------------------------


def packed(array: Array) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(1, msgspec.msgpack.encode((array.shape, array.dtype.name, array.tobytes())))


def nested(tensors: dict[str, Any], call: bool = True) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in tensors.items():
        at = tree
        for part in name.split("."):
            at = at.setdefault(part, {})
        at["__call__" if call else "output"] = value
    return tree


@variant("flax", OUTPUTS)
def flax_nested_bf16(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    arrays = {layer: {"0": packed(a.astype(ml_dtypes.bfloat16))} for layer, a in tiny_run(bug=bug).outputs.items()}
    tree = {"intermediates": nested(arrays)}
    (folder / "acts.msgpack").write_bytes(msgspec.msgpack.encode(tree))
    return folder


@variant("npz", OUTPUTS)
def npz_of_bf16(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    arrays: dict[str, Any] = {n: a.astype(ml_dtypes.bfloat16).view("V2") for n, a in tiny_run(bug=bug).outputs.items()}
    np.savez(folder / "acts.npz", **arrays)
    return folder


@variant("npz", OUTPUTS)
def npz_of_jax_names(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    arrays: dict[str, Any] = {
        f"{n.replace('layers.', 'layers_').replace('.', '/')}/__call__/0": a
        for n, a in tiny_run(bug=bug).outputs.items()
    }
    np.savez(folder / "intermediates.npz", **arrays)
    return folder


# --- torch files ---------------------------------------------------------------------------------


@variant("torch", OUTPUTS)
def torch_nested_by_module(folder: Path, bug: bool) -> Path:
    """``{"model": {"layers": {"0": {"mlp": {"output": …}}}}}``."""
    return pt(folder / "acts.pt", nested({n: t(a) for n, a in tiny_run(bug=bug).outputs.items()}, call=False))


@variant("torch", ALL, in_order=False)
def torch_of_inputs_and_outputs(folder: Path, bug: bool) -> Path:
    run, held = tiny_run(bug=bug), dict[str, dict[str, Any]]()
    for (layer, port), array in run.tensors.items():
        held.setdefault(layer, {})["output" if port == "output" else "input"] = (
            t(array) if port == "output" else (t(array),)
        )
    return pt(folder / "acts.pt", held)


@variant("torch", 2 * OUTPUTS)
def torch_of_steps(folder: Path, bug: bool) -> Path:
    steps = {s: {n: t(a) for n, a in tiny_run(bug=bug, seed=s).outputs.items()} for s in range(2)}
    return pt(folder / "acts.pt", steps)


@variant("torch", 2 * OUTPUTS)
def torch_of_named_steps(folder: Path, bug: bool) -> Path:
    steps = {f"step_{s}": {n: t(a) for n, a in tiny_run(bug=bug, seed=s).outputs.items()} for s in range(2)}
    return pt(folder / "acts.pt", {"activations": steps})


@variant("torch", 2 * OUTPUTS)
def torch_list_of_steps(folder: Path, bug: bool) -> Path:
    return pt(folder / "acts.pt", [{n: t(a) for n, a in tiny_run(bug=bug, seed=s).outputs.items()} for s in range(2)])


@variant("torch", 2 * OUTPUTS)
def torch_list_of_calls(folder: Path, bug: bool) -> Path:
    """``{layer: [first call, second call]}``, as hooks that append leave it."""
    runs = [tiny_run(bug=bug, seed=s).outputs for s in range(2)]
    return pt(folder / "acts.pt", {n: [t(run[n]) for run in runs] for n in runs[0]})


@variant("torch", OUTPUTS)
def torch_tuples(folder: Path, bug: bool) -> Path:
    """``(name, tensor)`` pairs."""
    return pt(folder / "acts.pt", [(n, t(a)) for n, a in tiny_run(bug=bug).outputs.items()])


@variant("torch", OUTPUTS)
def torch_outputs_in_tuples(folder: Path, bug: bool) -> Path:
    return pt(folder / "acts.pt", {n: (t(a),) for n, a in tiny_run(bug=bug).outputs.items()})


@variant("torch", OUTPUTS, culprit="layer_1.mlp.act_fn", ours=CULPRIT)
def torch_folder_of_blocks(folder: Path, bug: bool) -> Path:
    """A file for each block, with the names within it."""
    files: dict[str, dict[str, Any]] = {}
    for layer, array in tiny_run(bug=bug).outputs.items():
        _, _, rest = layer.partition("layers.")
        number, _, inside = rest.partition(".")
        files.setdefault(f"layer_{number}" if rest else "rest", {})[inside or "output" if rest else layer] = t(array)
    for name, held in files.items():
        pt(folder / f"{name}.pt", held)
    return folder


@variant("torch", 2 * OUTPUTS)
def torch_file_for_each_step(folder: Path, bug: bool) -> Path:
    for step in range(2):
        pt(folder / f"step_{step}.pt", {n: t(a) for n, a in tiny_run(bug=bug, seed=step).outputs.items()})
    return folder


@variant("ranks", OUTPUTS)
def torch_file_for_each_rank(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        pt(folder / f"rank{rank}.pt", {n: t(run.part((n, "output"), rank, 2)) for n in run.outputs})
    return folder


@variant("ranks", OUTPUTS)
def torch_sequence_parallel(folder: Path, bug: bool) -> Path:
    """Norms and the residual stream in halves of the sequence, the rest in halves of columns."""
    run = tiny_run(bug=bug)
    for rank in range(2):
        held = {}
        for layer, array in run.outputs.items():
            is_whole = run.split_of((layer, "output")) == "whole"
            held[layer] = t(split(array, 1, rank, 2) if is_whole else run.part((layer, "output"), rank, 2))
        pt(folder / f"acts_tp_rank_{rank}.pt", held)
    return folder


@variant("ranks", OUTPUTS)
def torch_partial_sums(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        pt(folder / f"rank{rank}.pt", {n: t(run.part((n, "output"), rank, 2, sums=True)) for n in run.outputs})
    return folder


@variant("torch", OUTPUTS)
def torch_folders_of_ranks(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    for rank in range(2):
        for layer in run.outputs:
            pt(folder / f"rank_{rank}" / f"{layer}.pt", t(run.part((layer, "output"), rank, 2)))
    return folder


# --- numpy ---------------------------------------------------------------------------------------


@variant("tree", OUTPUTS)
def npy_tree(folder: Path, bug: bool) -> Path:
    for layer, array in tiny_run(bug=bug).outputs.items():
        path = folder.joinpath(*layer.split(".")).with_suffix(".npy")
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return folder


@variant("tree", ALL)
def npy_tree_of_ports(folder: Path, bug: bool) -> Path:
    """A folder for each layer, a file for each port."""
    for (layer, port), array in tiny_run(bug=bug).tensors.items():
        path = folder / layer / f"{port}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, array)
    return folder


@variant("tree", 2 * OUTPUTS)
def npy_tree_of_steps(folder: Path, bug: bool) -> Path:
    for step in range(2):
        for layer, array in tiny_run(bug=bug, seed=step).outputs.items():
            path = folder.joinpath(f"step_{step}", *layer.split(".")).with_suffix(".npy")
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, array)
    return folder


@variant("numpy", 2 * OUTPUTS)
def npy_steps(folder: Path, bug: bool) -> Path:
    for step in range(2):
        save_npy(folder / f"step{step}", tiny_run(bug=bug, seed=step).outputs)
    return folder


@variant("tensordiff", OUTPUTS)
def max_shards(folder: Path, bug: bool) -> Path:
    """MAX's distributed layers: a tensor for each device under the layer's name."""
    run, held = tiny_run(bug=bug), dict[str, Array]()
    for layer in run.outputs:
        at = (layer, "output")
        if run.split_of(at) == "columns":
            held |= {f"{layer}._shards.{rank}-output": run.part(at, rank, 2) for rank in range(2)}
        else:
            held[f"{layer}-output"] = run.tensors[at]
    return write(folder, held)


# --- ranks and steps together --------------------------------------------------------------------


def outputs_of_rank(run: TinyRun, rank: int) -> dict[str, Array]:
    return {layer: run.part((layer, "output"), rank, 2) for layer in run.outputs}


def tensors_of(arrays: dict[str, Array]) -> dict[str, Any]:
    return {name: t(array) for name, array in arrays.items()}


@variant("torch", 2 * OUTPUTS)
def torch_ranks_within_steps(folder: Path, bug: bool) -> Path:
    for step in range(2):
        for rank in range(2):
            held = tensors_of(outputs_of_rank(tiny_run(bug=bug, seed=step), rank))
            pt(folder / f"step{step}" / f"rank{rank}" / "acts.pt", held)
    return folder


@variant("torch", 2 * OUTPUTS)
def torch_steps_within_ranks(folder: Path, bug: bool) -> Path:
    for step in range(2):
        for rank in range(2):
            held = tensors_of(outputs_of_rank(tiny_run(bug=bug, seed=step), rank))
            pt(folder / f"rank{rank}" / f"step_{step}.pt", held)
    return folder


@variant("torch", OUTPUTS)
def torch_ranks_in_one_file(folder: Path, bug: bool) -> Path:
    run = tiny_run(bug=bug)
    return pt(folder / "acts.pt", {f"rank{rank}": tensors_of(outputs_of_rank(run, rank)) for rank in range(2)})


@variant("torch", OUTPUTS)
def torch_list_of_blocks(folder: Path, bug: bool) -> Path:
    """``{"layers": [{…}, {…}]}``."""
    out = tiny_run(bug=bug).outputs
    blocks = []
    for i in range(BLOCKS):
        prefix = f"model.layers.{i}"
        inside = {name.removeprefix(f"{prefix}."): t(a) for name, a in out.items() if name.startswith(f"{prefix}.")}
        blocks.append(inside | {"output": t(out[prefix])})
    rest = {name: t(out[f"model.{name}"]) for name in ("embed_tokens", "norm")}
    first, last = {"embed_tokens": rest["embed_tokens"]}, {"norm": rest["norm"], "lm_head": t(out["lm_head"])}
    return pt(folder / "acts.pt", {**first, "layers": blocks, **last})


@variant("npz", 2 * OUTPUTS)
def npz_file_for_each_step(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    for step in range(2):
        arrays: dict[str, Any] = tiny_run(bug=bug, seed=step).outputs
        np.savez(folder / f"step{step}.npz", **arrays)
    return folder


@variant("safetensors", 2 * OUTPUTS)
def safetensors_file_for_each_step(folder: Path, bug: bool) -> Path:
    for step in range(2):
        save(folder / f"step_{step}.safetensors", tiny_run(bug=bug, seed=step).outputs, ordered=False)
    return folder


@variant("ranks", OUTPUTS)
def npz_file_for_each_rank(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    for rank in range(2):
        arrays: dict[str, Any] = outputs_of_rank(tiny_run(bug=bug), rank)
        np.savez(folder / f"acts_rank{rank}.npz", **arrays)
    return folder


# --- DTensors ------------------------------------------------------------------------------------


@variant("ranks", OUTPUTS)
def torch_dtensors_of_a_mesh(folder: Path, bug: bool) -> Path:
    """Two replicas of two halves; what is summed is half the whole and half of it again, and some are split twice."""
    run = tiny_run(bug=bug)
    for rank in range(4):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=4)
        try:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
            replica, half = divmod(rank, 2)
            held = {}
            for layer, array in run.outputs.items():
                if run.split_of((layer, "output")) == "columns":
                    local, placed = run.part((layer, "output"), half, 2), (Replicate(), Shard(2))
                elif layer.endswith("o_proj"):
                    local, placed = run.part((layer, "output"), half, 2, sums=True), (Replicate(), Partial())
                elif layer.endswith("layernorm"):
                    local, placed = split(split(array, 1, replica, 2), 2, half, 2), (Shard(1), Shard(2))
                else:
                    local, placed = array, (Replicate(), Replicate())
                held[layer] = DTensor.from_local(t(local), mesh, placed, run_check=False)
            pt(folder / f"rank{rank}.pt", held)
        finally:
            torch.distributed.destroy_process_group()
    return folder


# --- files that people's own hooks leave ---------------------------------------------------------


@variant("torch", OUTPUTS)
def torch_files_in_numbered_order(folder: Path, bug: bool) -> Path:
    """The buggy side has one operation more, which moves every number."""
    folder.mkdir(parents=True)
    outputs = tiny_run(bug=bug).outputs
    for number, (layer, array) in enumerate(outputs.items()):
        pt(folder / f"{number + bug:05d}__{layer}.pt", t(array))
    if bug:
        pt(folder / "00000__warm_up.pt", t(np.ones((2, 3), np.float32)))
    return folder


@variant("npz", OUTPUTS)
def npz_compressed(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    np.savez_compressed(folder / "activations.npz", **tiny_run(bug=bug).outputs)  # type: ignore[arg-type]
    return folder / "activations.npz"


@variant("torch", OUTPUTS)
def torch_of_bf16(folder: Path, bug: bool) -> Path:
    folder.mkdir(parents=True)
    held = {name: t(array).bfloat16() for name, array in tiny_run(bug=bug).outputs.items()}
    return pt(folder / "activations.pt", held)


@variant("sglang", OUTPUTS)
def passes_of_ranks(folder: Path, bug: bool) -> Path:
    """As proposed for vLLM: a pass file in a folder for each rank."""
    run = tiny_run(bug=bug)
    for rank in range(2):
        (folder / f"rank_{rank}").mkdir(parents=True)
        held = {layer: t(run.part((layer, "output"), rank, 2)) for layer in run.outputs}
        pt(folder / f"rank_{rank}" / "Pass0.pt", held)
    return folder
