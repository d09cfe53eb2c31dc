"""Write docs/commands.md from the help of every command: ``python -m docs.make_commands``."""

from __future__ import annotations

from pathlib import Path

import click

from tensordiff.cli.main import tensordiff

HEAD = """# Commands

Made by `python -m docs.make_commands` from what `tensordiff COMMAND --help` prints. A side is a dump or a source; see [capture](capture.md) and
[formats](formats.md).

## Examples

Compare two dumps: with an injected run and a run in higher precision, with your own tolerance, and only a part of the model.

```sh
tensordiff compare sample_dumps/reference sample_dumps/candidate --injected sample_dumps/candidate_injected --golden sample_dumps/golden  # exits 1
tensordiff compare sample_dumps/reference sample_dumps/max --rtol 1e-3 --atol 1e-6 --quiet
tensordiff compare sample_dumps/reference sample_dumps/candidate --only 'layers\\.0' --quiet
```

Compare with and without injection and write reports; list what a dump holds; check a pair for mistakes.

```sh
tensordiff verify sample_dumps/reference sample_dumps/candidate -o /tmp/verified  # exits 1
tensordiff inspect sample_dumps/max
tensordiff inspect sample_dumps/golden --stats --only 'mlp'
tensordiff lint sample_dumps/reference sample_dumps/candidate
```

Show how names were paired and why an entry has no partner; write what the values prove to a rules file.

```sh
tensordiff align sample_dumps/reference sample_dumps/max
tensordiff align sample_dumps/reference sample_dumps/max --auto -o /tmp/rules.toml --json
```

If something looks wrong, `tensordiff doctor` checks the install and lists the engines it finds.
"""
PAGE = Path(__file__).parent / "commands.md"
_WIDTH = 100


def page() -> str:
    """The whole page."""
    settings = {**tensordiff.context_settings, "max_content_width": _WIDTH}
    root = click.Context(tensordiff, info_name="tensordiff", terminal_width=_WIDTH, **settings)
    parts = [HEAD, _help("tensordiff", tensordiff, root)]
    for name in tensordiff.list_commands(root):
        command = tensordiff.get_command(root, name)
        if command is not None and not command.hidden:
            context = click.Context(command, root, name, terminal_width=_WIDTH, max_content_width=_WIDTH)
            parts.append(_help(f"tensordiff {name}", command, context))
    return "\n".join(parts)


def _help(title: str, command: click.Command, context: click.Context) -> str:
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    return f"## {title}\n\n```\n{text}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
