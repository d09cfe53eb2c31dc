"""What comparing without a dump costs: two models of about a billion parameters in bfloat16, on 512 tokens.

Random weights of real sizes, the same on both sides but for a bug that is planted into the candidate. Measured are the
disk that ``--stream`` leaves used and the most that lay in its window, against the size of the two dumps that it does
without; and its time against that of the two forwards alone, one after the other. Run it as
``python -m benchmarks.streaming [--layers 16] [--tokens 512] [--window 500MB]``. It needs 8 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tensordiff.capture.events import Done
from tensordiff.capture.runner import Run
from tensordiff.cli.options import Bytes
from tensordiff.session.request import Request
from tensordiff.session.streaming.options import StreamOptions
from tensordiff.session.streaming.session import open_stream
from tensordiff.util.sizes import format_bytes

MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def good():
    config = LlamaConfig(
        vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_hidden_layers={layers},
        num_attention_heads=32, num_key_value_heads=8, head_dim=64, tie_word_embeddings=True, dtype="bfloat16",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    model = model.to_empty(device="cpu").eval()
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        weight.data.fill_(1.0) if weight.dim() == 1 else weight.data.uniform_(-0.035, 0.035)
    model.tie_weights()
    model.model.rotary_emb.__init__(config)
    torch.manual_seed(1)
    return model, (), {{"input_ids": torch.randint(0, 128256, (1, {tokens}))}}

def bad():
    model, args, kwargs = good()
    model.model.layers[{layers} // 2].post_attention_layernorm.weight.data *= 1.25
    return model, args, kwargs
"""
FORWARD = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch, model
net, args, kwargs = getattr(model, sys.argv[2])()
before = time.perf_counter()
with torch.no_grad():
    net(*args, **kwargs)
print(json.dumps([time.perf_counter() - before, sum(weight.numel() for weight in net.parameters())]))
"""


def forward(folder: Path, name: str) -> tuple[float, int]:
    """Seconds of a forward alone, in a process that does nothing else, and the model's parameters."""
    command = [sys.executable, "-c", FORWARD, str(folder), name]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, parameters = json.loads(found.splitlines()[-1])
    return seconds, parameters


def children_s() -> float:
    """Processor time of all processes that were started here and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--window", default="500MB")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "model.py").write_text(MODEL.format(layers=asked.layers, tokens=asked.tokens))
        plain = [forward(folder, name) for name in ("good", "bad")]
        seconds = sum(each for each, _ in plain)
        print(f"parameters        {plain[0][1]:,} a side, bfloat16, {asked.tokens} tokens")
        print(f"two forwards      {seconds:.1f} s, one after the other, nothing recorded")
        print(f"their processes   {children_s():.1f} s of processor time, with starting and loading", flush=True)
        stream(folder, Bytes().convert(asked.window, None, None), seconds)


def stream(folder: Path, window: int, plain_s: float) -> None:
    """Compare with ``--stream``, and print what it took."""

    def follow(run: Run, label: str) -> Done:
        before = time.perf_counter()
        done = run.result()
        print(f"{label:22}{time.perf_counter() - before:.1f} s, with starting and loading", flush=True)
        return done

    kept, plain_children_s, own_s = folder / "kept", children_s(), time.process_time()
    request = Request(*(Path(f"py:{folder / 'model.py'}:{name}") for name in ("good", "bad")))
    with open_stream(request, StreamOptions(window, "diverging", kept), follow) as session:
        before = time.perf_counter()
        outcome = session.outcome(session.rows())
        seconds = time.perf_counter() - before
        if outcome.culprit is not None:
            session.keep_culprit(outcome.culprit)
        dumps = sum(entry.spec.nbytes for dump in (session.reference, session.candidate) for entry in dump.entries)
        entries, most = len(session.reference) + len(session.candidate), [one.most_bytes for one in session.streamed]
    on_disk = sum(path.stat().st_size for path in kept.rglob("*") if path.is_file())
    culprit = outcome.culprit.pair.name if outcome.culprit else "none"
    print(f"both, compared    {seconds:.1f} s for {len(outcome.rows):,} pairs ({seconds / plain_s:.1f} x two forwards)")
    children, own = children_s() - plain_children_s, time.process_time() - own_s
    print(f"processor time    {children:.1f} s of both models, run twice each, and {own:.1f} s to compare")
    print(f"two dumps         {format_bytes(dumps)}, {entries:,} tensors")
    print(f"in the window     {' and '.join(map(format_bytes, most))} at most, of {format_bytes(window)}")
    print(f"left on disk      {format_bytes(on_disk)}, {100 * on_disk / dumps:.2f} % of two dumps")
    print(f"verdict           {outcome.verdict}, first at {culprit}")


if __name__ == "__main__":
    main()
