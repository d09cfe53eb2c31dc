"""Small dumps of other people's tools, and checkpoints in every format that weights are compared in, to be damaged.

They are the ones that the tests make.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np


def _stand_in(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from tests.dump.readers.tools.stand_ins import STAND_INS

        STAND_INS[name][0](path)

    return make


def _dcp(path: Path) -> None:
    import torch
    import torch.distributed.checkpoint as dcp

    state = {f"model.layers.{k}.mlp.weight": torch.full((4, 6), k + 0.5) for k in range(3)}
    dcp.save(state, checkpoint_id=str(path), no_dist=True)


TOOLS: dict[str, Callable[[Path], None]] = {"dcp": _dcp} | {
    name: _stand_in(name)
    for name in (
        "debugger", "debugger_summary", "msprobe", "msprobe_statistics", "padiff", "polygraphy", "sglang",
        "sglang_ranks", "sglang_passes", "megatron", "trtllm", "vllm_hidden", "vllm_logger", "flax", "gguf",
        "llamacpp_log", "llamacpp_logits", "rank_files",
    )
}  # fmt: skip


# --- checkpoints -----------------------------------------------------------------------------------


def _sharded(path: Path) -> None:
    from tests.weights.making import llama, write_sharded

    write_sharded(llama(1, layers=2), path)


def _gguf(kind: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from tests.weights.making import llama, write_gguf

        write_gguf(llama(1, layers=1), path.with_suffix(".gguf"), kind)

    return make


def _mlx(path: Path) -> None:
    rng = np.random.default_rng(2)
    made = {}
    for k in range(3):
        stem = f"model.layers.{k}.mlp.up_proj"
        made[f"{stem}.weight"] = rng.integers(0, 1 << 32, (4, 16), np.uint32)
        made[f"{stem}.scales"] = rng.random((4, 2)).astype("f2")
        made[f"{stem}.biases"] = rng.random((4, 2)).astype("f2")
    path.mkdir()
    np.savez(path / "weights.npz", allow_pickle=False, **made)
    (path / "config.json").write_text('{"quantization": {"bits": 4, "group_size": 64}}')


def _fp8(path: Path) -> None:
    from ml_dtypes import float8_e4m3fn
    from safetensors.numpy import save_file

    rng = np.random.default_rng(3)
    made = {}
    for k in range(3):
        stem = f"model.layers.{k}.mlp.up_proj"
        made[f"{stem}.weight"] = rng.standard_normal((8, 16)).astype(float8_e4m3fn)
        made[f"{stem}.weight_scale_inv"] = rng.random((2, 2)).astype("f4")
    save_file(made, path.with_suffix(".safetensors"))


CHECKPOINTS: dict[str, Callable[[Path], None]] = {
    "weights": _sharded, "weights gguf": _gguf("F32"), "weights Q8_0": _gguf("Q8_0"), "weights Q4_0": _gguf("Q4_0"),
    "weights mlx": _mlx, "weights fp8": _fp8,
}  # fmt: skip
PLAIN_CHECKPOINTS = frozenset(("weights", "weights gguf"))
"""Those whose numbers are kept as they are: nothing explains a difference but the last bits."""
