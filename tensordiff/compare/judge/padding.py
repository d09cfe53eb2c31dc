"""Padding: tokens that the attention mask of a run hides from all others.

The output of a layer for padding is arbitrary: for a token that sees nothing, attention written out returns the mean of
everything and fused attention returns zeros, and both are right. So if a mask was dumped, a pair that does not agree is
judged by the visible tokens. A module may get right padding, pass wrong padding on to a part, and that part may mix it
with other tokens; then the module is to blame, not the part.

An encoder and its decoder read two sequences, which may have the same length: the mask of one hides nothing of the
other.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.compare.row import Row, values_of
from tensordiff.dump.dtypes import Array, is_float
from tensordiff.dump.model import CallKey, Entry

Mask = NDArray[np.bool_]
_MASK = re.compile(r"attention_mask$")
_ENCODERS = "input_encoder_attention_mask"
"""The input that tells a decoder the encoder's padding."""
_MOST_EXPERTS = 1024
_CACHE = re.compile(r"past|cache")
_BESIDE_DECODER = re.compile(r"input_(?:decoder_|encoder_(?:attention_mask|hidden_states))")
"""Inputs that only encoder-decoder models have."""
_OF_ENCODER = re.compile(r"encoder|enc_?dec|cross", re.IGNORECASE)
"""Layers that hold, or attend to, the encoder's tokens."""


class Visible(NamedTuple):
    """The visible part of a pair."""

    ref: Array
    cand: Array
    told: str
    """The number of visible tokens, for a sentence."""


class Padding:
    """The masks of a run, by step."""

    def __init__(self) -> None:
        self.masks: dict[int, Mask] = {}
        self.decoder_masks: dict[int, Mask] = {}
        """The decoder's masks, if there is an encoder too."""
        self.has_encoder = False
        """Whether the model has an encoder and a decoder, which read two sequences."""
        self.given: dict[tuple[str, int], bool] = {}
        """For each layer and step, whether all its floating-point inputs agree, padding included."""
        self.hidden: set[CallKey] = set()
        """Calls whose inputs are wrong only in padding."""
        self.guessed: set[int] = set()
        """Steps whose mask was not dumped but inferred from the positions of wrong tokens."""

    def note_mask(self, row: Row) -> None:
        """Remember a mask: [batch, tokens] of zeros and ones, equal on both sides, that hides some tokens but no whole
        row."""
        entry, shape = row.pair.reference, row.shape or ()
        if not entry.is_input:
            return
        if _BESIDE_DECODER.match(entry.port):
            self.has_encoder = True
        if not (row.is_exact and len(shape) == 2 and _MASK.search(entry.port)):
            return
        is_of_decoder = entry.port.startswith("input_decoder") or "decoder" in entry.layer.split(".")
        masks = self.decoder_masks if self.has_encoder and is_of_decoder else self.masks
        if row.verdict.name != "agrees" or entry.step in masks or entry.port == _ENCODERS:
            return
        sides = values_of(row.pair)
        mask = None if sides is None else np.asarray(sides[0])
        if mask is not None and mask.size and np.isin(mask, (0, 1)).all() and not mask.all() and mask.any(1).all():
            masks[entry.step] = mask.astype(bool)

    def is_guessed(self, row: Row) -> bool:
        """Whether the mask of a row's step was inferred rather than dumped."""
        step = row.pair.reference.step
        return step in self.guessed or (step not in self.masks and bool(self.guessed))

    def is_known(self, step: int) -> bool:
        """Whether some tokens of a step are known to be padding."""
        return self._mask_of(step) is not None

    def hidden_tokens(self, step: int, tokens: int) -> Mask | None:
        """Which tokens of a step are padding; None if no mask with that number of tokens is known."""
        mask = self.masks.get(step)
        return None if mask is None or mask.size != tokens else ~mask.reshape(-1)

    def record(self, row: Row, *, is_wrong_in_padding: bool = False) -> None:
        """Remember whether a layer's inputs were right."""
        entry = row.pair.reference
        if row.is_input and not row.is_exact:
            key = entry.layer, entry.step
            self.given[key] = self.given.get(key, True) and row.verdict.name == "agrees" and not is_wrong_in_padding
            if is_wrong_in_padding:
                self.hidden.add(entry.call_key)

    def has_wrong_padding_input(self, row: Row) -> bool:
        """Whether a layer got wrong padding although an enclosing module got right padding."""
        entry = row.pair.reference
        around = entry.layer.split(".")
        holders = (".".join(around[:k]) for k in range(1, len(around)))
        return entry.call_key in self.hidden and any(self.given.get((holder, entry.step), False) for holder in holders)

    def _mask_of(self, step: int, entry: Entry | None = None) -> Mask | None:
        """The mask of a step for an entry; a step without a mask still sees the padding of the last step that has
        one."""
        if not self.masks and not self.decoder_masks:
            return None
        masks = self.masks if entry is None else self._masks_for(entry)
        return masks.get(step, masks.get(max((one for one in masks if one < step), default=step)))

    def _masks_for(self, entry: Entry) -> dict[int, Mask]:
        """The masks of the sequence that an entry belongs to."""
        is_of_encoder = _OF_ENCODER.search(entry.layer) or _OF_ENCODER.search(entry.port) or _CACHE.search(entry.port)
        return self.decoder_masks if self.has_encoder and not is_of_encoder else self.masks

    def guess(self, row: Row, limit: float, few: float) -> bool:
        """Infer padding if a pair is wrong only at one end of the rows of a batch; returns whether it was.

        The rows must have different numbers of wrong tokens at that end, one row none, and all other tokens must be
        right, except for a share of ``few`` that may have taken other experts. Whether later layers see those tokens
        shows when the rest has been judged without them.
        """
        step, shape = row.pair.reference.step, row.shape or ()
        masks = self._masks_for(row.pair.reference)
        sides = values_of(row.pair) if step not in masks and len(shape) >= 3 and min(shape[:2]) > 1 else None
        if sides is None or row.is_input or not all(is_float(side.dtype) for side in sides):
            return False
        ref, cand = (side.reshape(*shape[:2], -1).astype(np.float64) for side in sides)
        with np.errstate(all="ignore"):
            sizes = np.linalg.norm(ref, axis=2)
            errors = np.linalg.norm(cand - ref, axis=2) / np.maximum(sizes, 0.3 * np.median(sizes))
        wrong = ~(errors <= limit)  # true for NaN
        tries = [np.where(wrong.any(1), shape[1] - wrong[:, ::-1].argmax(1), 0)]  # up to the last wrong token
        tries += [np.where(wrong.all(1), shape[1], wrong.argmin(1))] if few else []  # up to the first right token
        ends = [np.where(wrong.any(1), shape[1] - wrong.argmax(1), 0)]  # the same from the end
        ends += [np.where(wrong.all(1), shape[1], wrong[:, ::-1].argmin(1))] if few else []
        places = np.arange(shape[1])
        for runs, is_end in (*((one, False) for one in tries), *((one, True) for one in ends)):
            seen = places < shape[1] - runs[:, None] if is_end else places >= runs[:, None]
            if runs.min() == 0 < runs.max() <= shape[1] // 2 and wrong[seen].mean() <= few:
                break
        else:
            return False
        masks[step] = seen
        self.guessed.add(step)
        return True

    def visible(self, row: Row) -> Visible | None:
        """The visible part of a pair; None if there is no mask, or it hides no token of the pair."""
        mask, shape = self._mask_of(row.pair.reference.step, row.pair.reference), row.shape or ()
        seen = None if mask is None else _seen(row.pair.reference, shape, mask)
        sides = None if seen is None or seen.all() else values_of(row.pair)
        if seen is None or sides is None:
            return None
        ref, cand = (np.moveaxis(side, _axis(shape, seen), 1)[seen] if seen.ndim == 2 else side[seen] for side in sides)
        count = f"of the {int(seen.sum())} of {seen.size} tokens"
        is_guess = self.is_guessed(row)
        which = "that are not at an end of some rows, where padding may be" if is_guess else "that the mask shows"
        return Visible(ref, cand, f"{count} {which}")


def _seen(entry: Entry, shape: tuple[int, ...], mask: Mask) -> Mask | None:
    """Which tokens of a tensor are visible: [batch, tokens], or all tokens in one row."""
    rows, tokens = mask.shape
    if len(shape) >= 2 and shape[0] == rows * tokens:
        return mask.reshape(-1)
    if len(shape) == 2 and shape[0] % (rows * tokens) == 0 and 1 < shape[0] // (rows * tokens) <= _MOST_EXPERTS:
        return np.tile(mask.reshape(-1), shape[0] // (rows * tokens))  # all tokens, once for each expert
    if len(shape) == 3 and shape[1] == rows * tokens and shape[0] != rows:
        return np.broadcast_to(mask.reshape(-1), shape[:2])  # the same
    if len(shape) == 4 and shape[1:3] == mask.shape and shape[0] != rows:
        return np.broadcast_to(mask, shape[:3])  # several streams of one batch
    if (len(shape) < 3 and shape != mask.shape) or shape[0] != rows:
        return None
    if tokens in shape[1:3]:
        return mask if shape[1:3].count(tokens) == 1 or len(shape) == 3 else None
    if _CACHE.search(entry.port) and len(shape) == 4:
        later = np.ones((rows, max(0, shape[2] - tokens)), dtype=bool)
        return np.concatenate((mask[:, : shape[2]], later), 1)
    return None


def _axis(shape: tuple[int, ...], seen: Mask) -> int:
    """The axis of the tokens, in a tensor that has them after the batch or after the heads."""
    return 1 if shape[1] == seen.shape[1] else 2
