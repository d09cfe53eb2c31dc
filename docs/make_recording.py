"""Make docs/recording.svg: the app on the samples while keys are pressed, as one animated picture.

Every frame is the app's own screenshot. The picture needs no script and loads nothing; where a reader has animations
switched off, or a viewer knows none, it shows the culprit and stands still.
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, chdir
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from docs.make_pictures import settled
from tensordiff.session.request import Request
from tensordiff.tui.app import TensordiffApp

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "recording.svg"
SIZE = (110, 30)
_CAPTION = 64  # pixels below the terminal


class Scene(NamedTuple):
    """Keys that are pressed, how long their result is shown, and what is written below it."""

    keys: tuple[str, ...]
    seconds: float
    caption: str
    is_still: bool = False
    """Whether this is what is shown where nothing moves."""


SCENES = (
    Scene((), 3, "tensordiff reference candidate     every layer of both runs, in execution order"),
    Scene(("n",), 4, "n     the first culprit: the first layer that is wrong with right inputs", is_still=True),
    Scene(("enter",), 4.5, "enter     inside the layer: where the error is, and what kind of error it looks like"),
    Scene(("3",), 3, "3     the error by token and channel"),
    Scene(("5",), 3, "5     the worst elements, with both values"),
    Scene(("q", "f"), 3, "f     only the rows that do not agree"),
    Scene(("f", "b"), 3.5, "b     a binary search, for when a person must judge"),
    Scene(("r", "m"), 3.5, "m     the rules by which names were paired, and what is left over"),
    Scene(("m", "e"), 3.5, "e     a report that someone else can act on"),
)


@asynccontextmanager
async def _at_home() -> AsyncIterator[None]:
    """A home folder of its own, so that the picture shows ``~/port`` and no folder of this machine."""
    before = os.environ.get("HOME")
    with tempfile.TemporaryDirectory() as home:
        (folder := Path(home) / "port").mkdir()
        os.environ["HOME"] = home
        try:
            with chdir(folder):
                yield
        finally:
            os.environ.pop("HOME") if before is None else os.environ.__setitem__("HOME", before)


async def frames(scenes: tuple[Scene, ...] = SCENES) -> list[str]:
    """The app's screenshot after each scene's keys, as SVG."""
    samples = ROOT / "sample_dumps"
    request = Request(samples / "reference", samples / "candidate", injected=samples / "candidate_injected")
    app = TensordiffApp(request, saves_state=False)
    found = []
    async with _at_home(), app.run_test(size=SIZE) as pilot:
        await settled(app)
        for scene in scenes:
            for key in scene.keys:
                await pilot.press(key)
                await settled(app)
                await pilot.pause()
            found.append(app.export_screenshot(title="tensordiff"))
    return found


def animated(pictures: list[str], scenes: tuple[Scene, ...] = SCENES) -> str:
    """Several screenshots of one size as one animated picture."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', pictures[0])
    assert box is not None
    width, height = float(box[1]), float(box[2])
    whole = sum(scene.seconds for scene in scenes)
    moving, drawn, at = [], [], 0.0
    for number, (picture, scene) in enumerate(zip(pictures, scenes, strict=True)):
        begin, at = at, at + scene.seconds
        moving.append(_keyframes(number, 100 * begin / whole, 100 * at / whole))
        moving.append(f".scene-{number} {{ animation: show-{number} {whole:g}s step-end infinite }}")
        still = " still" if scene.is_still else ""
        drawn.append(
            f'<g class="scene scene-{number}{still}">{_small(picture, width, height)}'
            f'<text class="caption" x="{width / 2:g}" y="{height + 40:g}">{escape(scene.caption)}</text></g>'
        )
    style = (
        ".scene { visibility: hidden } .still { visibility: visible }\n"
        ".caption { font: 24px sans-serif; fill: #888; text-anchor: middle; white-space: pre }\n"
        "@media (prefers-reduced-motion: no-preference) {\n.still { visibility: hidden }\n" + "\n".join(moving) + "\n}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height + _CAPTION:g}" role="img">'
    title = "<title>tensordiff in a terminal: from two dumps to the first wrong layer and a report</title>"
    return f"{head}{title}<style>{style}</style>\n" + "\n".join(drawn) + "\n</svg>\n"


def _keyframes(number: int, begin: float, end: float) -> str:
    steps = {0.0: "hidden", end: "hidden", begin: "visible"}
    if end >= 100:
        del steps[end]
    shown = " ".join(f"{at:.3f}% {{ visibility: {what} }}" for at, what in sorted(steps.items()))
    return f"@keyframes show-{number} {{ {shown} }}"


def _small(picture: str, width: float, height: float) -> str:
    """A screenshot without fonts from elsewhere and without the clipping of single lines, which takes half of it."""
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    picture = re.sub(r'\s*<clipPath id="[^"]*-line-\d+">.*?</clipPath>', "", picture, flags=re.DOTALL)
    picture = re.sub(r' clip-path="url\(#[^"]*-line-\d+\)"', "", picture)
    picture = picture.replace("<svg ", f'<svg width="{width:g}" height="{height:g}" ', 1)
    picture = re.sub(r"<!--.*?-->", "", picture, flags=re.DOTALL)
    return re.sub(r"\n\s*", "\n", picture.replace("Fira Code, monospace", "monospace"))


def main() -> None:
    TARGET.write_text(animated(asyncio.run(frames())), "utf-8")


if __name__ == "__main__":
    main()
