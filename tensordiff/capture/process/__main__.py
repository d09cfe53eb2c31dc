"""``PYTHON -m tensordiff.capture.process KIND FD [stay]``: what may run under the wrong interpreter, and says so.

This file and the packages above it are read by whatever interpreter the user names, so they are kept to what old
ones understand; all else is imported once it is known that it can be.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

NEEDED = {
    "hf": ("numpy", "ml_dtypes", "torch", "transformers"),
    "py": ("numpy", "ml_dtypes", "torch"),
    "max": ("numpy", "ml_dtypes", "max"),
    "onnx": ("numpy", "ml_dtypes", "onnx", "onnxruntime"),
}


def why_not(kind: str) -> str | None:
    """Why this interpreter cannot run such a source, or None."""
    python = sys.executable
    if sys.version_info < (3, 11):  # noqa: UP036 - it may be any that the user names
        version = ".".join(map(str, sys.version_info[:2]))
        return f"{python}: is Python {version}, and 3.11 or newer is needed; give another with --python"
    missing = [name for name in NEEDED[kind] if importlib.util.find_spec(name) is None]
    if not missing:
        return None
    pip = f"{python} -m pip install {' '.join(missing)}"
    return f"{python}: has no {' and no '.join(missing)}; install: {pip}, or give another interpreter with --python"


def main() -> int:
    """Refuse, or run the child."""
    kind, told = sys.argv[1], int(sys.argv[2])
    sentence = why_not(kind)
    if sentence is not None:
        line = json.dumps({"event": "failed", "sentence": sentence, "detail": "", "path": None})
        os.write(told, f"{line}\n".encode())
        return 1
    from tensordiff.capture.process.child_main import start

    return start(kind, told, stays="stay" in sys.argv[3:])


if __name__ == "__main__":
    os._exit(main())  # all is written, nothing is buffered; the frameworks' own way out takes seconds
