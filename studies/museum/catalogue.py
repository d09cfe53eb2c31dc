"""All exhibits."""

from __future__ import annotations

from studies.museum.exhibit import Exhibit
from studies.museum.exhibits import attention, encoders, experts, masks, parts, rope, states

EXHIBITS: tuple[Exhibit, ...] = tuple(
    exhibit for module in (rope, attention, masks, experts, parts, states, encoders) for exhibit in module.EXHIBITS
)
BY_NAME = {exhibit.name: exhibit for exhibit in EXHIBITS}
