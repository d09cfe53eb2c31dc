"""Models of a few lines for ``py:`` sources, as text: each has a function for the CPU and others for GPUs."""

from __future__ import annotations

from pathlib import Path

from tests.capture.models import script

TYPES = """
import torch
from torch import nn

class Branches(nn.Module):
    '''Two streams, tensors that are overwritten, and every kind of tensor that must be copied in its own way.'''

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.act = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU(inplace=True)

    def forward(self, x):
        h = self.a(x)
        if x.is_cuda:
            other = torch.cuda.Stream(x.device)
            other.wait_stream(torch.cuda.current_stream(x.device))
            with torch.cuda.stream(other):
                u = self.act(self.b(h))
                u.mul_(2)
            torch.cuda.current_stream(x.device).wait_stream(other)
        else:
            u = self.act(self.b(h))
            u.mul_(2)
        y = self.c(h + u).to(torch.bfloat16).t()
        h.zero_()
        f = y.float()
        return {"y": y, "f8": y.to(torch.float8_e4m3fn), "z": torch.complex(f, -f).conj(), "n": y > 0, "empty": f[:0],
                "scalar": f.sum(), "strided": f[:, ::2], "expanded": f[:1].expand(5, -1), "f64": f.double(),
                "i8": f.to(torch.int8)}

def on(device):
    torch.manual_seed(0)
    return Branches().to(device), (torch.linspace(-2, 2, 24).reshape(4, 6).to(device),)

def cpu():
    return on("cpu")

def gpu():
    return on(f"cuda:{torch.cuda.device_count() - 1}")
"""

NET = """
import torch
from torch import nn

class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor

class Net(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(8, 8), Scale(factor), nn.Linear(8, 8)

    def forward(self, x):
        return self.last(self.scale(self.first(x)))

def made(factor, device):
    torch.manual_seed(0)
    return Net(factor).to(device), {"x": torch.ones(2, 8).to(device)}

def right():
    return made(1.0, "cpu")

def right_gpu():
    return made(1.0, "cuda:0")

def wrong():
    return made(1.5, f"cuda:{torch.cuda.device_count() - 1}")
"""

POSITIONS = """
import torch
from torch import nn

class Positions(nn.Module):
    def forward(self, x, device):
        return x + torch.arange(x.shape[-1], dtype=x.dtype, device=device)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.positions, self.last = nn.Linear(8, 8), Positions(), nn.Linear(2, 8)

    def forward(self, x):
        return self.last(self.positions(self.first(x), x.device).t())

def gpu():
    torch.manual_seed(0)
    device = f"cuda:{torch.cuda.device_count() - 1}"
    return Net().to(device), (torch.ones(2, 8).to(device),)
"""
"""A layer that is told where to make its own tensor, and one whose input is not contiguous."""

SPREAD = """
import tempfile
import torch
import transformers

def load(**options):
    # Eager, so that all devices run the same operations.
    options |= {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(PATH, **options).eval()

def where(embedding, first, second, norm):
    return {"model.embed_tokens": embedding, "model.rotary_emb": embedding, "model.layers.0": first,
            "model.layers.1": second, "model.norm": norm, "lm_head": embedding}

def steps(model, device):
    ids = torch.arange(3, 12)[None].to(device)
    out = yield model, {"input_ids": ids, "use_cache": True}
    for _ in range(2):
        token = out.logits[:, -1:].argmax(-1)
        out = yield model, {"input_ids": token, "past_key_values": out.past_key_values, "use_cache": True}

def cpu():
    yield from steps(load(), "cpu")

def two():
    yield from steps(load(device_map=where(0, 1, 1, 0)), "cuda:0")

def crossed():
    yield from steps(load(device_map=where(1, 1, 0, 0)), "cuda:1")

def offloaded():
    yield from steps(load(device_map=where(0, "cpu", 0, "disk"), offload_folder=tempfile.mkdtemp()), "cuda:0")

def offloaded_elsewhere():
    # What is offloaded computes on the first GPU of all, here another than the one that the first weights lie on.
    yield from steps(load(device_map=where(1, "cpu", 1, 0)), "cuda:1")
"""


def spread_source(folder: Path, model: Path) -> str:
    """A file of models that are spread over devices; add a function's name to it."""
    return f"py:{script(folder, f'PATH = {str(model)!r}{SPREAD}')}:"
