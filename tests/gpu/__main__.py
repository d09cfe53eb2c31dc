"""``python -m tests.gpu``: the tests of this folder on the machine's GPU, or on fake ones where there is none.

Arguments go to pytest. Where neither can be had, the tests are skipped, with a sentence.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gpu.gpu_machine import fake_cuda, has_gpu, why_no_fake


def main() -> int:
    """Run pytest where torch finds GPUs."""
    environment = dict(os.environ)
    if why_no_fake() is None and not has_gpu():
        print("there is no GPU here: the tests run on two fake ones", flush=True)
        environment |= fake_cuda()
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "2", str(Path(__file__).parent), *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


sys.exit(main())
