"""Downloads: files for the user's browser, where the app may not write files."""

from __future__ import annotations

import io
from pathlib import Path

from textual.widget import Widget

from tensordiff.tui.notice import tell
from tensordiff.tui.permissions import NO_WRITES


def download(node: Widget, name: str, content: str | bytes) -> None:
    """Pass a file to the browser, which saves it as a download. Nothing is written on this machine."""
    if not node.app.is_web:
        tell(node, NO_WRITES, "warning")
        return
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    node.app.deliver_binary(io.BytesIO(data), save_filename=Path(name).name)
    tell(node, f"{Path(name).name} is downloaded by your browser, since {NO_WRITES}")
