"""The driver and the cards, as files of the driver's own kind say them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensordiff.capture.devices import card_model, driver_version

VERSION = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (builder@host)\n"
    "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n"
)
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(("cards", "model"), [((H100, H100), H100), ((H100, A100), None), ((), None)])
def test_what_the_driver_says(tmp_path: Path, cards: tuple[str, ...], model: str | None) -> None:
    (tmp_path / "version").write_text(VERSION)
    for number, card in enumerate(cards):
        about = tmp_path / "gpus" / f"0000:0{number}:00.0" / "information"
        about.parent.mkdir(parents=True)
        about.write_text(f"Model: \t\t {card}\nIRQ:   \t\t 33\nVideo BIOS: \t 96.00.5e.00.01\n")
    assert driver_version(tmp_path) == "570.86.15"
    assert card_model(tmp_path) == model


def test_no_driver_says_nothing(tmp_path: Path) -> None:
    assert driver_version(tmp_path) is None and card_model(tmp_path) is None
