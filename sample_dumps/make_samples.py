"""Makes the sample dumps that can be made here: candidate, candidate_injected and golden.

``reference`` and ``max`` are real dumps of other tools and are only checked against. One tiny random
Llama is run three times: with a planted bug, with the same bug while each module in turn is given the
reference's inputs, and without it in float64. Needs torch and transformers in the versions that
``README.md`` names. Run it as ``python sample_dumps/make_samples.py``; it ends by checking that the
dumps show what they are meant to show.
"""

from __future__ import annotations

import hashlib
import inspect
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.activations import ACT2FN

from tensordiff.dump import Dump, open_dump
from tensordiff.dump.dtypes import Array
from tensordiff.dump.native.writer import DumpWriter

HERE = Path(__file__).parent
PROMPT = "The meaning of life is not a single enumerator"
TOKEN_IDS = [263, 307, 296, 294, 293, 311, 287, 313, 309]
CULPRIT = "model.model.layers.1.mlp.act_fn"
ROUNDING = 1e-6  # float32 runs of this model differ by less than this when nothing is wrong


class Capture(NamedTuple):
    """One tensor as a hook saw it."""

    module: nn.Module
    values: Array
    injected: list[str] | None


Captures = dict[str, Capture]


# The model


def build() -> nn.Module:
    """The checkpoint all sample dumps share: random, two layers, norms that are not all ones."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=320, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=512, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=1, pad_token_id=1, attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).float().eval()
    noise = torch.Generator().manual_seed(1)
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            weight.data += 0.1 * torch.randn(weight.shape, generator=noise)
    return model


def plant(model: nn.Module) -> nn.Module:
    """The bug: one layer's activation is the tanh form of GELU where the checkpoint wants SiLU."""
    path = CULPRIT.removeprefix("model.").rpartition(".")[0]
    model.get_submodule(path).act_fn = ACT2FN["gelu_pytorch_tanh"]
    return model


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
        digest.update(weight.contiguous().view(torch.uint8).numpy().tobytes())
    return f"sha256:{digest.hexdigest()}"


# Running it


def tensors_in(found: Any, port: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a hook's argument, named as MAX's print hook names them."""
    if isinstance(found, Tensor):
        yield port, found
    elif isinstance(found, dict):
        yield from ((f"{port}_{key}", value) for key, value in found.items() if isinstance(value, Tensor))
    elif isinstance(found, tuple):
        yield from tensors_in(dict(enumerate(found)), port)


def watch(name: str, captures: Captures, injected: list[str] | None) -> Callable[..., None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        for found, port in ((args, "input"), (kwargs, "input"), (output, "output")):
            for label, tensor in tensors_in(found, port):
                key = f"{name}-{label}"
                put_in = None if injected is None else [n for n in injected if port == "output" or n == key]
                captures[key] = Capture(module, tensor.detach().numpy().copy(), put_in)

    return hook


def full_name(name: str) -> str:
    return f"model.{name}" if name else "model"


def run(model: nn.Module) -> Captures:
    """One forward pass; every module's inputs and outputs in the order the modules finish."""
    captures: Captures = {}
    handles = [
        module.register_forward_hook(watch(full_name(name), captures, None), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    with torch.no_grad():
        model(torch.tensor([TOKEN_IDS]))
    for handle in handles:
        handle.remove()
    return captures


def run_injected(model: nn.Module, reference: dict[str, Array]) -> Captures:
    """One pass a module, in which that module alone gets the reference's inputs.

    If all got theirs in one pass, a module would never see its own children's errors: the next child
    would be given the right values again.
    """
    captures: Captures = {}
    for name, module in model.named_modules():
        inputs = {n: v for n, v in reference.items() if n.startswith(f"{full_name(name)}-input")}
        handles = (
            module.register_forward_pre_hook(put(full_name(name), inputs), with_kwargs=True),
            module.register_forward_hook(watch(full_name(name), captures, list(inputs)), with_kwargs=True),
        )
        with torch.no_grad():
            model(torch.tensor([TOKEN_IDS]))
        for handle in handles:
            handle.remove()
    return captures


def put(name: str, inputs: dict[str, Array]) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Replace each input that was recorded; the others (caches, tuples) stay the run's own."""

    def swap(label: object, value: Any) -> Any:
        found = inputs.get(f"{name}-input_{label}")
        return value if found is None else torch.from_numpy(found.copy())

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(map(swap, range(len(args)), args)), {key: swap(key, value) for key, value in kwargs.items()}

    return hook


# Writing it down


def write(dump: str, captures: Captures, order: list[str], dtype: str, weights: str, note: str) -> None:
    facts = {
        "source": f"py:make_samples.py:{dump.removesuffix('_injected')}",
        "framework": "torch",
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "device": "cpu",
        "dtype": dtype,
        "prompt": PROMPT,
        "token_ids": TOKEN_IDS,
        "config_overrides": {},
        "flags": {
            "attention": "eager",
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "threads": torch.get_num_threads(),
        },
        "weights_hash": weights,
        "notes": note,
    }
    with DumpWriter(HERE / dump, facts, overwrite=True, header_bytes=16 << 10) as writer:
        for name in order:
            module, values, injected = captures[name]
            file, line = source_of(module)
            writer.add(
                name,
                values,
                module_class=type(module).__name__,
                source_file=file,
                source_line=line,
                injected=injected,
            )


def source_of(module: nn.Module) -> tuple[str, int]:
    """File, from the package on, and line of a module's forward."""
    forward = inspect.unwrap(type(module).forward)
    packages = Path(torch.__file__).parents[1]
    return Path(inspect.getfile(forward)).relative_to(packages).as_posix(), inspect.getsourcelines(forward)[1]


def candidate(weights: str) -> None:
    captures = run(plant(build()))
    write("candidate", captures, list(captures), "float32", weights, "one forward pass")


def candidate_injected(weights: str, reference: dict[str, Array], order: list[str]) -> None:
    captures = run_injected(plant(build()), reference)
    note = "one forward pass a module, which alone was given the recorded inputs of reference"
    write("candidate_injected", captures, order, "float32", weights, note)


def golden(weights: str) -> None:
    captures = run(build().double())
    note = "norms, rotary angles and softmax are computed in float32 inside, as the model's code says"
    write("golden", captures, list(captures), "float64", weights, note)


# Checking what came out


def rel_l2(found: Array, wanted: Array) -> float:
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    size = float(np.linalg.norm(b))
    return float(np.linalg.norm(a - b)) / size if size else float(np.any(a))


def read_reference() -> dict[str, Array]:
    folder = HERE / "reference" / "0"
    names = (folder / "tensor_names.txt").read_text().split()
    return {name: torch.load(folder / f"{name}.pt", weights_only=True).numpy() for name in names}


def check_reference(captures: Captures, reference: dict[str, Array]) -> None:
    """The recorded reference and the model built here are the same model."""
    assert list(captures) == list(reference), "this run has other tensors than the reference, or another order"
    same = [name for name, values in reference.items() if np.array_equal(captures[name].values, values)]
    worst = max(rel_l2(captures[name].values, values) for name, values in reference.items())
    print(f"reference: {len(same)} of {len(reference)} tensors bit for bit, the rest within rel_l2 {worst:.1e}")
    assert "model.model.embed_tokens-output" in same, "other weights than the reference's were drawn here"
    assert worst < ROUNDING


def errors(dump: Dump, reference: dict[str, Array]) -> dict[str, float]:
    """Of all tensors but masks: those hold the least number of their type, which says nothing."""
    return {
        entry.name: rel_l2(entry.read(), reference[entry.name])
        for entry in dump.entries
        if not entry.port.endswith("_mask")
    }


def holds_culprit(name: str) -> bool:
    layer, _, port = name.rpartition("-")
    return port.startswith("output") and f"{CULPRIT}.".startswith(f"{layer}.")


def check(reference: dict[str, Array]) -> None:
    """One culprit, nothing wrong before it, and with right inputs nothing wrong but what holds it."""
    plain = errors(open_dump(HERE / "candidate"), reference)
    injected = errors(open_dump(HERE / "candidate_injected"), reference)
    exact = errors(open_dump(HERE / "golden"), reference)
    print(f"{'rel_l2 against reference':52} {'candidate':>10} {'injected':>10} {'golden':>10}")
    for name in (name for name in reference if "-output" in name):
        print(f"{name:52} {plain[name]:10.1e} {injected[name]:10.1e} {exact[name]:10.1e}")
    names = list(plain)
    before = names[: names.index(f"{CULPRIT}-output")]
    assert all(plain[name] < ROUNDING for name in before)
    assert plain[f"{CULPRIT}-output"] > 1e-2
    assert all((injected[name] > ROUNDING) == holds_culprit(name) for name in names)
    assert all(error < ROUNDING for error in exact.values())


def main() -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    reference, model = read_reference(), build()
    check_reference(run(model), reference)
    weights = weights_hash(model)
    candidate(weights)
    candidate_injected(weights, reference, list(reference))
    golden(weights)
    check(reference)


if __name__ == "__main__":
    main()
