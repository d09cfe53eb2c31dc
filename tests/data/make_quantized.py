"""Make quantized.gguf and quantized.json: every type that is read, as llama.cpp and the gguf package write and read it.

Needs ``pip install gguf xllamacpp``. For each type there is a tensor of random blocks, so that every bit counts, and
one of weights that llama.cpp's own quantizer made (ternary ones for the ternary types). The JSON holds a digest of
what the gguf package makes of each.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import xllamacpp
from gguf import GGMLQuantizationType, quants

HERE = Path(__file__).parent
TYPES = (2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 20, 23, 34, 35, 39, 40)
ROWS, COLUMNS = 4, 512


def main() -> None:
    rng = np.random.default_rng(20)
    ggml = ctypes.CDLL(next(str(p) for p in Path(xllamacpp.__file__).parent.glob("*.so")))
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    weights = rng.normal(0, 0.02, (ROWS, COLUMNS)).astype(np.float32)
    ternary = (rng.integers(-1, 2, (ROWS, COLUMNS)) * np.float32(0.03125)).astype(np.float32)
    writer = gguf.GGUFWriter(HERE / "quantized.gguf", "llama")
    writer.add_tensor("weights", weights)
    writer.add_tensor("ternary", ternary)
    digests = {}
    for code in TYPES:
        kind = GGMLQuantizationType(code)
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        source = ternary if kind.name.startswith("TQ") else weights
        data = np.zeros((ROWS, COLUMNS // elements * size), np.uint8)
        ggml.ggml_quantize_chunk(
            ctypes.c_int(code), source.ctypes.data_as(ctypes.c_void_p), data.ctypes.data_as(ctypes.c_void_p),
            ctypes.c_int64(0), ctypes.c_int64(ROWS), ctypes.c_int64(COLUMNS), None,
        )  # fmt: skip
        for name, raw in ((f"{kind.name}.random", random_blocks(rng, kind, size)), (f"{kind.name}.weight", data)):
            values = np.asarray(quants.dequantize(raw, kind), np.float32)
            assert np.isfinite(values).all()
            writer.add_tensor(name, raw, raw_dtype=kind)
            digests[name] = hashlib.sha256((values + np.float32(0)).tobytes()).hexdigest()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (HERE / "quantized.json").write_text(json.dumps(digests, indent=1) + "\n")


def random_blocks(rng: np.random.Generator, kind: GGMLQuantizationType, size: int) -> np.ndarray:
    """Two blocks of random bytes whose scales are finite."""
    while True:
        raw = rng.integers(0, 256, (1, 2 * size), dtype=np.uint8)
        with np.errstate(all="ignore"):
            if np.isfinite(quants.dequantize(raw, kind)).all():
                return raw


if __name__ == "__main__":
    main()
