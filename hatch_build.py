"""The build hook: the measuring pass is compiled while a wheel is built or an editable install is made.

Where nothing can compile it the install has none, and measures in numpy: see ``build_kernel.py``. A compiler that the
user named must compile it, or there is no install.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).parent))
from build_kernel import (
    SOURCE,
    ZIG,
    Compiler,
    NoKernel,
    build,
    build_in_place,
    is_named,
    library_name,
    this_machine,
    wants_zig,
    wheel_tag,
)

_INSIDE = "tensordiff/compare/measure/kernel"
_NAMED_FAILED = (
    "tensordiff was not built, as the compiler that TENSORDIFF_CC names does not compile its measuring pass; name "
    "another, or TENSORDIFF_CC=none for an install that measures in numpy, slower"
)


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the library into the wheel, or beside its sources."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Zig, unless there is none for this machine or another compiler is named."""
        return [ZIG] if wants_zig() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before files are collected."""
        reason = SOURCE / "no_kernel.txt"
        try:
            if version == "editable":
                build_in_place()
            else:
                self._into_wheel(build_data)
            reason.unlink(missing_ok=True)
        except NoKernel as error:
            if os.environ.get("TENSORDIFF_TARGET"):
                raise  # a wheel for others is not made without it
            if is_named():
                self.app.abort(f"{_NAMED_FAILED}: {error}")
            self.app.display_warning(f"tensordiff has no compiled pass and measures in numpy, slower: {error}")
            self._say_why(str(error), version, build_data)

    def _into_wheel(self, build_data: dict[str, Any]) -> None:
        target, compiler = os.environ.get("TENSORDIFF_TARGET") or this_machine(), Compiler.choose()
        library = Path(tempfile.mkdtemp()) / library_name(target)
        build(library, target, compiler)
        build_data["force_include"][str(library)] = f"{_INSIDE}/{library.name}"
        build_data["pure_python"], build_data["tag"] = False, wheel_tag(target, compiler)

    def _say_why(self, why: str, version: str, build_data: dict[str, Any]) -> None:
        """Leave the reason where the library would be, for whoever asks why it is slow."""
        folder = SOURCE if version == "editable" else Path(tempfile.mkdtemp())
        (folder / "no_kernel.txt").write_text(why, encoding="utf-8")
        if version == "editable":
            (SOURCE / library_name(this_machine())).unlink(missing_ok=True)
        else:
            build_data["force_include"][str(folder / "no_kernel.txt")] = f"{_INSIDE}/no_kernel.txt"
