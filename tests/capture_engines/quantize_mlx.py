"""A checkpoint of transformers as mlx-lm quantizes it: ``quantize_mlx.py FOLDER OUTPUT BITS``.

It is run in MLX's own environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mlx_lm.utils import load_model, quantize_model, save_config, save_model


def main(folder: Path, output: Path, bits: int) -> None:
    model, config = load_model(folder)
    model, config = quantize_model(model, config, group_size=32, bits=bits)
    save_model(output, model)
    save_config(config, config_path=output / "config.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
