"""What installing costs: seconds and megabytes of a new environment, the first command in it, and whether that works.

``python -m benchmarks.install FOLDER`` installs from the wheels in a folder, as ``make dist`` left them, and runs the
demo in that environment.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from build_kernel import TARGETS, this_machine

ROOT = Path(__file__).resolve().parent.parent
_INSTALLERS = ("pip", "setuptools", "pkg_resources", "_distutils_hack", "distutils")
_WHICH = "from tensordiff.compare.measure import kernel; print(kernel.describe())"


class Installed(NamedTuple):
    seconds: float
    megabytes: float
    """Of all files that came, bytecode included; pip itself is not counted."""
    first: float
    """Seconds of the first comparison in a new install."""
    again: float
    which: str
    """The pass that measures."""


def install(what: str, *options: str) -> Installed:
    """Install into a new environment, and compare the samples there twice."""
    with tempfile.TemporaryDirectory() as folder:
        env = Path(folder) / "env"
        subprocess.run([sys.executable, "-m", "venv", str(env)], check=True)
        python = str(env / "bin" / "python")
        command = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", *options, what]
        start = time.perf_counter()
        subprocess.run([*command, "--constraint", str(ROOT / "constraints.txt")], check=True, cwd=folder)
        seconds = time.perf_counter() - start
        size = sum(_sizes(next((env / "lib").glob("python*")) / "site-packages"))
        first, again = (_demo(env, Path(folder)) for _ in range(2))
        which = subprocess.run([python, "-c", _WHICH], check=True, capture_output=True, text=True, cwd=folder).stdout
        return Installed(seconds, size / 1e6, first, again, which.strip())


def _sizes(packages: Path) -> list[int]:
    found = (path for path in packages.rglob("*") if path.is_file())
    return [
        path.stat().st_size for path in found if path.relative_to(packages).parts[0].split("-")[0] not in _INSTALLERS
    ]


def _demo(env: Path, folder: Path) -> float:
    """Seconds of ``tensordiff demo`` without a terminal, which compares."""
    start = time.perf_counter()
    done = subprocess.run(
        [str(env / "bin" / "tensordiff"), "demo"], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=folder
    )
    if done.returncode or "diverges, first at layers.1.mlp.act_fn" not in done.stdout:
        raise SystemExit(f"the demo does not work in a new install: {done.stdout}{done.stderr}")
    return time.perf_counter() - start


def rows() -> list[list[str]]:
    """From the sources, as ``make demo`` does; packages come from wherever pip finds them."""
    found = install(str(ROOT))
    return [
        ["`pip install`, from sources, zig fetched: time", f"{found.seconds:.0f} s", "-"],
        ["what it adds to an environment", f"{found.megabytes:.0f} MB", "220 MB"],
        ["the first `demo` after it, which compares the samples", f"{found.first:.2f} s", "-"],
        ["the second", f"{found.again:.2f} s", "-"],
    ]


def main() -> None:
    [wheel] = Path(sys.argv[1]).resolve().glob(f"tensordiff-*-py3-none-{TARGETS[this_machine()]}.whl")
    found = install(str(wheel))
    print(
        f"installed in {found.seconds:.0f} s, {found.megabytes:.0f} MB; demo {found.first:.2f} s, {found.again:.2f} s"
    )
    print(f"it measures by the pass that is {found.which}")
    if not found.which.startswith("compiled"):
        raise SystemExit("the wheel has no compiled pass")


if __name__ == "__main__":
    main()
