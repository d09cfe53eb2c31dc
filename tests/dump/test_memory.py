"""Values that would take more memory than there is: refused with both numbers, before any is taken."""

from __future__ import annotations

import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests import processes
from tests.cli.command import environment

MB = 1 << 20
LIMITED = """
import resource, sys
import numpy, ml_dtypes, msgspec, click
from tensordiff.cli.main import run
import tensordiff.cli.commands.compare, tensordiff.dump.readers
tuple(tensordiff.dump.readers.readers())
taken = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + (300 << 20), ) * 2)
run()
"""


def compared(*args: object) -> tuple[int, str]:
    """Compare with 300 MB to spare."""
    ran = processes.run([sys.executable, "-c", LIMITED, "compare", *map(str, args)], env=environment())
    return ran.returncode, ran.stderr


def npz(path: Path, nbytes: int, claimed: int | None = None) -> Path:
    """A compressed array of zeros; ``claimed`` is what the zip says of its size, if that is a lie."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("x.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(
            file, {"descr": "|u1", "fortran_order": False, "shape": ((claimed or nbytes + 128) - 128,)}
        )
        for _ in range(nbytes // MB):
            file.write(bytes(MB))
    if claimed is not None:
        data = bytearray(path.read_bytes())
        at = data.index(b"PK\1\2")
        struct.pack_into("<I", data, at + 24, claimed)
        path.write_bytes(data)
    return path


def test_an_npz_that_unpacks_to_more_than_there_is(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz", 400 * MB)
    assert path.stat().st_size < MB
    status, said = compared(path, path)
    assert status == 2
    assert "x.npz: its member 'x.npy' unpacks to 419.4 MB (419,430,528 bytes), and " in said
    assert " of memory are available; save it uncompressed" in said


def test_an_npz_that_fits(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.ones(9 * MB))
    path = tmp_path / "x.npz"
    assert compared(path, path) == (0, "")


@pytest.mark.parametrize("claimed", [1 * MB, 200 * MB])
def test_an_npz_that_unpacks_to_more_than_it_says(tmp_path: Path, claimed: int) -> None:
    path = npz(tmp_path / "x.npz", 400 * MB, claimed)
    status, said = compared(path, path)
    assert status == 2
    assert f"it unpacks to more than the {claimed} bytes it claims" in said


def test_an_expression_that_takes_more_than_there_is(tmp_path: Path) -> None:
    for side, names in (("r", "abc"), ("c", "def")):
        (tmp_path / side).mkdir()
        for name in names:
            np.save(tmp_path / side / f"{name}.npy", np.zeros(40 * MB, np.float16))
    (tmp_path / "rules.toml").write_text(
        '[[map]]\nreference = "cat(a, b, c)"\ncandidate = "sum(d, cat(e, f))"\n'
        '[[map]]\nreference = "sum(a, b)"\ncandidate = "sum(d, e)"\n'
    )
    status, said = compared(tmp_path / "r", tmp_path / "c", "--rules", tmp_path / "rules.toml")
    assert status == 2
    assert "it takes 503.3 MB (503,316,480 bytes), and " in said.replace("\n", " ")


def test_a_tensor_that_repeats_itself_beyond_memory(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(1).expand(1 << 30)}, tmp_path / "x.pt")
    assert (tmp_path / "x.pt").stat().st_size < MB
    status, said = compared(tmp_path / "x.pt", tmp_path / "x.pt")
    assert status == 2
    assert "takes 4.3 GB (4,294,967,296 bytes), and " in said
