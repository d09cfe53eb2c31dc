"""The child's entry point: ``PYTHON -m tensordiff.capture.process KIND FD [reusable]``.

Any interpreter that the user names reads this module and the packages above it. So they use only syntax that old
interpreters understand, and report what is missing in a sentence. Everything else is imported after that check.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys

from tensordiff.capture.engines import ENGINES, missing_sentence


def missing_requirement(kind: str) -> str | None:
    """Why this interpreter cannot run sources of a kind, or None."""
    python = sys.executable
    if sys.version_info < (3, 11):  # noqa: UP036 - it may be any interpreter that the user names
        version = ".".join(map(str, sys.version_info[:2]))
        return f"{python}: is Python {version}, and 3.11 or newer is needed; give another with --python"
    missing = [name for name in ENGINES[kind].packages if importlib.util.find_spec(name) is None]
    return missing_sentence(kind, python, missing) if missing else None


def main() -> int:
    """Refuse, or run the child."""
    kind, events = sys.argv[1], int(sys.argv[2])
    sentence = missing_requirement(kind)
    if sentence is not None:
        line = json.dumps({"event": "failed", "sentence": sentence, "detail": "", "path": None})
        os.write(events, f"{line}\n".encode())
        return 1
    from tensordiff.capture.process.child_main import child_main

    return child_main(kind, events, is_reusable="reusable" in sys.argv[3:])


if __name__ == "__main__":
    os._exit(main())  # everything is written by now, and the frameworks' own shutdown takes seconds
