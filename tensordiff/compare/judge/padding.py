"""Padding: tokens that the attention mask of a run hides from all others.

What a layer gives for them is nobody's business: attention written out gives the mean of everything for a token that
sees nothing, fused attention gives zeros, and both are right. So where a mask was dumped, a pair that does not agree is
judged by the tokens that it lets through. A module may get padding right and hand it to a part with something in it
that should not be there, and the part mix it with the rest; then the module is to blame, not the part.

An encoder and its decoder read two sequences, which may be equally long: the mask of one hides nothing of the other.
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
"""What a decoder is given to know the encoder's padding by."""
_MOST_EXPERTS = 1024
_CACHE = re.compile(r"past|cache")
_BESIDE_DECODER = re.compile(r"input_(?:decoder_|encoder_(?:attention_mask|hidden_states))")
"""Inputs that only models with an encoder and a decoder have."""
_OF_ENCODER = re.compile(r"encoder|enc_?dec|cross", re.IGNORECASE)
"""Layers that hold the encoder's tokens; attention to them may."""


class Visible(NamedTuple):
    """The part of a pair that a mask lets through."""

    ref: Array
    cand: Array
    told: str
    """How many tokens that are, for a sentence."""


class Padding:
    """The masks of a run, by its step."""

    def __init__(self) -> None:
        self.masks: dict[int, Mask] = {}
        self.decoder_masks: dict[int, Mask] = {}
        """Those of the decoder, where there is an encoder too."""
        self.has_encoder = False
        """Whether there are an encoder and a decoder, which read two sequences."""
        self.given: dict[tuple[str, int], bool] = {}
        """For each layer and step whether all floats that it was given agree, in padding, too."""
        self.hidden: set[CallKey] = set()
        """Calls that were given what is wrong in padding alone."""
        self.guessed: set[int] = set()
        """Steps whose mask was not dumped, but told by what is wrong."""

    def see(self, row: Row) -> None:
        """Remember a mask: [batch, tokens] of zeros and ones, the same on both sides, that hides some of each."""
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
        """Whether the mask of a row's step was not dumped."""
        step = row.pair.reference.step
        return step in self.guessed or (step not in self.masks and bool(self.guessed))

    def is_known(self, step: int) -> bool:
        """Whether some tokens of a step are padding."""
        return self._mask_of(step) is not None

    def hidden_tokens(self, step: int, tokens: int) -> Mask | None:
        """Which of all tokens of a step are padding; None where that is not known of so many."""
        mask = self.masks.get(step)
        return None if mask is None or mask.size != tokens else ~mask.reshape(-1)

    def record(self, row: Row, *, is_wrong_in_padding: bool = False) -> None:
        """Remember what a layer was given."""
        entry = row.pair.reference
        if row.is_input and not row.is_exact:
            key = entry.layer, entry.step
            self.given[key] = self.given.get(key, True) and row.verdict.name == "agrees" and not is_wrong_in_padding
            if is_wrong_in_padding:
                self.hidden.add(entry.call_key)

    def came_in(self, row: Row) -> bool:
        """Whether a layer was given wrong padding, which a module around it was given right."""
        entry = row.pair.reference
        around = entry.layer.split(".")
        holders = (".".join(around[:k]) for k in range(1, len(around)))
        return entry.call_key in self.hidden and any(self.given.get((holder, entry.step), False) for holder in holders)

    def _mask_of(self, step: int, entry: Entry | None = None) -> Mask | None:
        """The mask of a step, for an entry; where it has none, what it sees of the step before is hidden still."""
        if not self.masks and not self.decoder_masks:
            return None
        masks = self.masks if entry is None else self._masks_for(entry)
        return masks.get(step, masks.get(max((one for one in masks if one < step), default=step)))

    def _masks_for(self, entry: Entry) -> dict[int, Mask]:
        """The masks of the sequence that an entry is of."""
        is_of_encoder = _OF_ENCODER.search(entry.layer) or _OF_ENCODER.search(entry.port) or _CACHE.search(entry.port)
        return self.decoder_masks if self.has_encoder and not is_of_encoder else self.masks

    def guess(self, row: Row, limit: float, few: float) -> bool:
        """Whether a pair is wrong only in what may be padding at one end of the rows of a batch; remembered if so.

        Rows must have different numbers of wrong tokens there, one of them none, and all others must be
        right, but for a ``few`` (as a share) that may have taken other experts. Whether nothing after them sees those
        tokens is seen when the rest has been judged without them.
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
        wrong = ~(errors <= limit)  # a NaN is wrong
        tries = [np.where(wrong.any(1), shape[1] - wrong[:, ::-1].argmax(1), 0)]  # up to the last that is wrong
        tries += [np.where(wrong.all(1), shape[1], wrong.argmin(1))] if few else []  # up to the first that is right
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
        """What a mask lets through of a pair; None where there is none, or the pair has no tokens that it hides."""
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
        return np.tile(mask.reshape(-1), shape[0] // (rows * tokens))  # all tokens, for one expert after the other
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
    """Where the tokens stand, in a tensor that has them after the batch or after the heads."""
    return 1 if shape[1] == seen.shape[1] else 2
