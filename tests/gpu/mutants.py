"""``python -m tests.gpu.mutants``: each wait for a GPU and each placement taken away, and a test that fails for it.

A copy of the project is changed in one place, the tests that are named are run in it, and must fail. A mutant that
survives ends this with status 1. docs/gpu.md has the table; a few minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.gpu.gpu_machine import fake_cuda, has_gpu

ROOT = Path(__file__).parent.parent.parent
_COPIED = ("tensordiff", "tests", "sample_dumps", "pyproject.toml")
_TORCH = "tensordiff/capture/engines/torch"
_HF = "tensordiff/capture/engines/hf/engine.py"


class Mutant(NamedTuple):
    """One change, and the tests that must see it."""

    what: str
    file: str
    before: str
    after: str
    tests: str
    """An expression for pytest's ``-k``."""


MUTANTS = (
    Mutant(
        "the writer does not wait for a copy", f"{_TORCH}/writing/writer.py",
        "piece.ready.synchronize()", "pass", "capturing_takes_no_memory",
    ),
    Mutant(
        "the event is recorded before the copy", f"{_TORCH}/writing/ring.py",
        "        held.copy_(tensor, non_blocking=True)\n",
        "        early = torch.cuda.Event(blocking=True)\n"
        "        early.record(torch.cuda.current_stream(tensor.device))\n"
        "        held.copy_(tensor, non_blocking=True)\n        return early\n",
        "capturing_takes_no_memory",
    ),
    Mutant(
        "the event is recorded on the default stream", f"{_TORCH}/writing/ring.py",
        "torch.cuda.current_stream(tensor.device)", "torch.cuda.default_stream(tensor.device)", "side_streams",
    ),
    Mutant(
        "the event is recorded on the current device's stream, not the tensor's", f"{_TORCH}/writing/ring.py",
        "torch.cuda.current_stream(tensor.device)", "torch.cuda.current_stream()", "capturing_takes_no_memory",
    ),
    Mutant(
        "memory is used again before it is written", f"{_TORCH}/writing/ring.py",
        "if end - self._given > self.nbytes:", "if False:", "capturing_takes_no_memory",
    ),
    Mutant(
        "waiting for a copy busy-loops", f"{_TORCH}/writing/ring.py",
        "torch.cuda.Event(blocking=True)", "torch.cuda.Event()", "capturing_takes_no_memory",
    ),
    Mutant(
        "tensors of a graph that is being captured are copied", f"{_TORCH}/writing/sinks.py",
        "torch.cuda.is_current_stream_capturing()", "False", "cuda_graph",
    ),
    Mutant(
        "inputs stay on the CPU", _HF,
        "value.to(device) if isinstance(value, torch.Tensor) else value", "value", "second_gpu",
    ),
    Mutant(
        "injected values stay on the CPU", f"{_TORCH}/inject.py",
        "to_device(to_tensor(value).to(own.dtype), own.device)", "to_tensor(value).to(own.dtype)", "culprit_is_told",
    ),
    Mutant(
        "injected values go to the first GPU", f"{_TORCH}/inject.py",
        "to_device(to_tensor(value).to(own.dtype), own.device)",
        'to_device(to_tensor(value).to(own.dtype), own.device if own.is_cpu else "cuda:0")',
        "culprit_is_told",
    ),
    Mutant(
        "a replayed layer's inputs stay on the CPU", f"{_TORCH}/replay/arguments.py",
        "to_device(wanted.cast(to_tensor(entry.read())), devices.get(name, device))",
        "wanted.cast(to_tensor(entry.read()))", "another_side_s_layer",
    ),
    Mutant(
        "a replayed cache goes to one device", f"{_TORCH}/replay/arguments.py",
        "devices.get(name, device)", "device", "given_its_cache and crossed",
    ),
    Mutant(
        "an offloaded layer's cache goes where its weights lie", f"{_TORCH}/devices/offload.py",
        "    for hook in hooks_of(module):\n        if (device", "    for hook in ():\n        if (device",
        "given_its_cache and offloaded_elsewhere",
    ),
    Mutant(
        "a bundle's layer stays on the GPU", f"{_TORCH}/replay/bundle.py",
        "PlainLayer(on_cpu(self.module)", "PlainLayer(self.module", "test_replay",
    ),
    Mutant(
        "a bundle's inputs stay on the GPU", f"{_TORCH}/replay/arguments.py",
        "{name: tensor.cpu() for name, tensor in self.tensors.items()}", "dict(self.tensors)", "test_replay",
    ),
    Mutant(
        "a bundle's script compares across devices", f"{_TORCH}/replay/repro_script.py",
        "got.cpu().double().reshape(-1)", "got.double().reshape(-1)", "test_replay",
    ),
    Mutant(
        "a bundle's script leaves inputs on the CPU", f"{_TORCH}/replay/repro_script.py",
        "tensor.to(device) for port", "tensor for port", "test_replay",
    ),
    Mutant(
        "accelerate's operations are taken for the model's", f"{_TORCH}/ops.py",
        "if name in _INTERNAL or _is_placement(sys._getframe(1)):", "if name in _INTERNAL:",
        "operations_are_the_model_s and layers",
    ),
    Mutant(
        "weights that were just loaded are taken for what flows", f"{_TORCH}/ops.py",
        "return _storages(_weights(module, recurse=False)) if any(True for _ in hooks_of(module)) else set()",
        "return set()", "operations_are_the_model_s and norm",
    ),
    Mutant(
        "offloaded weights are hashed as empty", f"{_TORCH}/devices/offload.py",
        "if waiting is None or not tensor.is_meta:", "if True:", "what_the_cpu_does and offloaded",
    ),
    Mutant(
        "all weights are copied to the host to see whether they changed", f"{_TORCH}/unchanged.py",
        "    if not plain.is_cpu:\n        return (*about, *_sums_on_device(plain))\n", "    plain = plain.cpu()\n",
        "whether_a_model_changed",
    ),
    Mutant(
        "whether a model changed is counted on the CPU", f"{_TORCH}/unchanged.py",
        "len(bits) + 1, device=bits.device)", "len(bits) + 1)", "whether_a_model_changed",
    ),
    Mutant(
        "a model stays on the CPU", _HF,
        "return model.to(place.device)", "return model", "second_gpu",
    ),
    Mutant(
        "inputs go to the first GPU", _HF,
        "_placed(self.inputs.kwargs, first_device(self.model))",
        '_placed(self.inputs.kwargs, torch.device("cuda", 0))', "second_gpu",
    ),
    Mutant(
        "several GPUs are all there are", _HF,
        "    if place.gpus:\n", "    if False:\n", "were_named",
    ),
    Mutant(
        "a model without weights runs", _HF,
        "    _refuse_empty(model, place, target)\n", "", "there_is_no_room_for",
    ),
    Mutant(
        "a replayed layer is given the CPU for a device", f"{_TORCH}/replay/arguments.py",
        "                return self.device\n", '                return torch.device("cpu")\n', "is_given_a_device",
    ),
    Mutant(
        "a bundle's layer is given the GPU for a device", f"{_TORCH}/replay/arguments.py",
        'self._replace(tensors=tensors, device=torch.device("cpu"))', "self._replace(tensors=tensors)",
        "is_given_a_device",
    ),
    Mutant(
        "a replayed layer's strided inputs are laid out on the CPU", f"{_TORCH}/tensors.py",
        "strides, dtype=values.dtype, device=values.device)", "strides, dtype=values.dtype)", "strided_input",
    ),
    Mutant(
        "what a replayed layer gives is read on the GPU", f"{_TORCH}/tensors.py",
        "resolved(tensor).cpu().contiguous()", "resolved(tensor).contiguous()", "another_side_s_layer",
    ),
    Mutant(
        "a bundle's layer is copied on the GPU", f"{_TORCH}/devices/offload.py",
        "plain = tensor.detach().cpu()", "plain = tensor.detach()", "alone_and_its_bundle",
    ),
    Mutant(
        "a bundle's offloaded weights stay empty", f"{_TORCH}/devices/offload.py",
        "    _load(made, Weights(module))\n", "", "runs_anywhere and offloaded",
    ),
    Mutant(
        "a bundle's offloaded weights are loaded to the GPU", f"{_TORCH}/devices/offload.py",
        "weights.value(name).detach().cpu()", "weights.value(name).detach()", "runs_anywhere and norm",
    ),
    Mutant(
        "a bundle's file of weights needs a GPU", f"{_TORCH}/replay/bundle.py",
        "{name: value.detach().cpu() for name, value", "{name: value.detach() for name, value",
        "alone_and_its_bundle",
    ),
    Mutant(
        "a bundle is compared with its device across devices", f"{_TORCH}/replay/bundle.py",
        "tensor.detach().cpu().double()", "tensor.detach().double()", "alone_and_its_bundle",
    ),
    Mutant(
        "a bundle's script leaves the layer on the CPU", f"{_TORCH}/replay/repro_script.py",
        "program = move_to_device_pass(program, device)", "pass", "test_replay",
    ),
    Mutant(
        "without pinned memory a copy is not waited for", f"{_TORCH}/writing/writer.py",
        "part.cpu().contiguous()", 'part.to("cpu", non_blocking=True).contiguous()', "without_memory_to_pin",
    ),
    Mutant(
        "weights are hashed where they lie", f"{_TORCH}/facts.py",
        "resolved(flat).cpu().contiguous()", "resolved(flat).contiguous()", "what_it_gives_on_the_cpu and llama",
    ),
    Mutant(
        "weights to round are read where they lie", f"{_TORCH}/quantized.py",
        "parameter.detach().cpu()", "parameter.detach()", "quantized_candidate",
    ),
    Mutant(
        "the weights of a loss are on the CPU", f"{_TORCH}/gradients.py",
        "device=first.device, ", "", "is_no_logits",
    ),
)  # fmt: skip
"""What is not here has no effect: ``map_location="cpu"`` and ``wanted.cpu()`` in a bundle's script, since what a bundle
holds was saved on the CPU."""


def main() -> int:
    """Try every mutant, or those whose text holds an argument; the exit status."""
    environment = dict(os.environ) | ({} if has_gpu() else fake_cuda())
    wanted = [one for one in MUTANTS if not sys.argv[1:] or any(word in one.what for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory(prefix="tensordiff-mutants-") as folder:
        for name in _COPIED:
            source, to = ROOT / name, Path(folder) / name
            shutil.copytree(source, to) if source.is_dir() else shutil.copy(source, to)
        survivors = [mutant for mutant in wanted if not _is_seen(mutant, Path(folder), environment)]
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} mutants are seen")
    return 1 if survivors else 0


def _is_seen(mutant: Mutant, folder: Path, environment: dict[str, str]) -> bool:
    file = folder / mutant.file
    text = file.read_text("utf-8")
    assert mutant.before in text, f"{mutant.file} no longer has: {mutant.before}"
    file.write_text(text.replace(mutant.before, mutant.after), "utf-8")
    paths = os.pathsep.join(filter(None, (str(folder), environment.get("PYTHONPATH", ""))))
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "2", "-x", "-k", mutant.tests, "tests/gpu"]
    try:
        ran = subprocess.run(
            [*command, "-p", "no:cacheprovider"], cwd=folder, env=environment | {"PYTHONPATH": paths},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    finally:
        file.write_text(text, "utf-8")
    failed = next((line for line in ran.stdout.splitlines() if line.startswith("FAILED")), "")
    is_seen = bool(failed)  # the status also tells of tests that were not found or not begun
    print(f"{'seen    ' if is_seen else 'SURVIVES'}  {mutant.what}: {failed.partition(' - ')[0]}", flush=True)
    return is_seen


if __name__ == "__main__":
    sys.exit(main())
