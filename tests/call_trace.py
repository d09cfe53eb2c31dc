"""Who calls whom in tensordiff while something really runs: a profile hook on every thread of this process.

As a program it runs one of the ways that ``docs/architecture.md`` describes, and prints the calls as JSON::

    python -m tests.call_trace compare REFERENCE CANDIDATE
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import tensordiff

PACKAGE = Path(tensordiff.__file__).parent


class CallTrace:
    """The calls within the package, as (caller, callee); a thread's first function has no caller."""

    def __init__(self) -> None:
        self.calls: set[tuple[str | None, str]] = set()
        self._names: dict[CodeType, str | None] = {}

    def __enter__(self) -> CallTrace:
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _saw(self, frame: FrameType, event: str, _: Any) -> None:
        callee = self._name(frame.f_code) if event == "call" else None
        if callee is None:
            return
        above = frame.f_back
        while above is not None and (self._name(above.f_code) in (None, callee)):
            above = above.f_back
        self.calls.add((self._name(above.f_code) if above else None, callee))

    def _name(self, code: CodeType) -> str | None:
        """``cli/main.py:run``; what is defined within a function counts as that function. None outside the package."""
        if code not in self._names:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE)
            function = code.co_qualname.partition(".<locals>")[0]
            self._names[code] = f"{path.relative_to(PACKAGE).as_posix()}:{function}" if inside else None
        return self._names[code]


def command(*args: str) -> None:
    """Run a command of tensordiff to its end."""
    from tensordiff.cli.main import run

    sys.argv = ["tensordiff", *args]
    with suppress(SystemExit), redirect_stdout(StringIO()):
        run()


def app(reference: str, candidate: str) -> None:
    """Open two dumps in the app, and let it measure and paint them."""
    from tensordiff.session.request import Request
    from tests.tui.app_host import running

    async def look() -> None:
        async with running(Request(Path(reference), Path(candidate))) as shown:
            await shown.settle()

    asyncio.run(look())


def child(source: str, reference: str, output: str) -> None:
    """What a child process does for ``capture SOURCE --inject REFERENCE``."""
    from tests.capture.models import injected_here

    injected_here(source, Path(output), Path(reference))


WAYS: dict[str, Callable[..., None]] = {"command": command, "app": app, "child": child}


def main() -> None:
    """Run one way and print its calls."""
    way, *args = sys.argv[1:]
    with CallTrace() as trace:
        WAYS[way](*args)
    print(json.dumps(sorted(trace.calls, key=str)))


if __name__ == "__main__":
    main()
