"""Logits: how far apart two models are in the tokens they would choose next.

A row along the last axis holds the logits of one token. As in MAX's ``verify``, this computes by token the KL
divergence of the candidate's distribution from the reference's and the cosine distance, and whether the most likely
tokens are the same, all in float64. The divergence is summed from terms that are never negative, so that the 1e-15
between two healthy float32 runs is a true value rather than a rounding residue.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensordiff.dump.dtypes import Array

K = 5
"""The number of most likely tokens that ``top_k`` compares."""
SMALLEST_VOCABULARY = 32
_PART = 1 << 20  # elements converted at a time
_LAYERS = ("lm_head", "logits")

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class LogitsDiff(NamedTuple):
    """How two sets of logits differ."""

    tokens: int
    """The number of tokens measured."""
    of: int
    """The number of tokens there are."""
    kl_div: float
    """KL(reference || candidate) of the worst token, in nats. NaN if a row has no distribution."""
    kl_div_mean: float
    cosine_distance: float
    """The cosine distance of the worst token."""
    cosine_distance_mean: float
    top_1: float
    """The share of tokens for which both choose the same next token."""
    top_k: float
    """The share of the reference's ``k`` most likely tokens that are among the candidate's, over all tokens."""
    k: int

    def as_json(self) -> dict[str, Any]:
        """The fields as a dict."""
        return self._asdict()


def is_logits(name: str, port: str, shape: Sequence[int]) -> bool:
    """Whether an entry holds logits, by its name and the length of its last axis."""
    is_named = port == "output_logits" or (name.rpartition(".")[2] in _LAYERS and not port.startswith("input"))
    return is_named and len(shape) > 0 and shape[-1] >= SMALLEST_VOCABULARY


def has_distributions(array: Array) -> bool:
    """Whether a softmax along the last axis makes sense."""
    return array.ndim > 0 and array.shape[-1] > 1 and array.dtype.kind != "c"


def compare_logits(ref: Array, cand: Array, max_elements: int | None = None) -> LogitsDiff:
    """Compare a pair of one shape. ``max_elements`` limits reading to evenly spaced tokens, including the last one."""
    ref, cand = _by_token(ref), _by_token(cand)
    tokens, vocabulary = ref.shape
    chosen = _chosen(tokens, tokens if max_elements is None else max(1, max_elements // vocabulary))
    step = max(1, _PART // vocabulary)
    parts = [chosen[begin : begin + step] for begin in range(0, len(chosen), step)]
    return _joined([_compare_part(ref[part], cand[part], tokens) for part in parts], min(K, vocabulary), tokens)


def _by_token(array: Array) -> Array:
    return array.reshape(-1, array.shape[-1])


def _chosen(tokens: int, count: int) -> NDArray[np.int64]:
    if count >= tokens:
        return np.arange(tokens)
    return (np.arange(1, count + 1) * tokens) // count - 1


def _joined(parts: Sequence[LogitsDiff], k: int, of: int) -> LogitsDiff:
    """Combine the results of several sets of tokens."""
    tokens = sum(part.tokens for part in parts)

    def mean(field: str) -> float:
        return sum(getattr(part, field) * part.tokens for part in parts) / tokens if tokens else math.nan

    return LogitsDiff(
        tokens=tokens, of=of,
        kl_div=_worst([part.kl_div for part in parts]), kl_div_mean=mean("kl_div_mean"),
        cosine_distance=_worst([part.cosine_distance for part in parts]),
        cosine_distance_mean=mean("cosine_distance_mean"),
        top_1=mean("top_1"), top_k=mean("top_k"), k=k,
    )  # fmt: skip


def _worst(values: Sequence[float]) -> float:
    """The largest value; NaN counts as largest, and is returned if there are no values."""
    return max(values, key=lambda value: (math.isnan(value), value), default=math.nan)


def _compare_part(ref: Array, cand: Array, of: int) -> LogitsDiff:
    x, y = ref.astype(np.float64), cand.astype(np.float64)
    with np.errstate(all="ignore"):
        kl, cosine, (top_1, top_k) = kl_divergence(x, y), cosine_distances(x, y), _agreement(x, y)
        kl_mean, cosine_mean = float(kl.mean()), float(cosine.mean())
    return LogitsDiff(
        tokens=len(x), of=of, kl_div=_worst(kl.tolist()), kl_div_mean=kl_mean,
        cosine_distance=_worst(cosine.tolist()), cosine_distance_mean=cosine_mean,
        top_1=top_1, top_k=top_k, k=min(K, x.shape[-1]),
    )  # fmt: skip


def kl_divergence(x: Floats, y: Floats) -> Floats:
    """KL(softmax(x) || softmax(y)) of each row, in nats.

    A row with a NaN or +inf, or with nothing but -inf, has no distribution and gives NaN. -inf is a probability of 0;
    if only the candidate has it, the divergence is infinite.
    """
    with np.errstate(all="ignore"):
        log_p, log_q = _log_softmax(x), _log_softmax(y)
        p = np.exp(log_p)
        far = np.maximum(np.where(p > 0, p * (log_p - log_q), 0.0).sum(-1), 0.0)
        near, is_near = _small_divergence(x, y, p)
        has_no_distribution = ~(np.isfinite(x.max(-1)) & np.isfinite(y.max(-1)))
        return np.where(has_no_distribution, np.nan, np.where(is_near, near, far))


def _log_softmax(x: Floats) -> Floats:
    shifted = x - x.max(-1, keepdims=True)
    log_probabilities: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probabilities


def _small_divergence(x: Floats, y: Floats, p: Floats) -> tuple[Floats, Flags]:
    """The divergence for rows whose logits differ by less than 1 apart from a shift, and which rows those are.

    With t = log q - log p, KL is the sum of p * (e^t - 1 - t), as both p and q sum to 1; no term is negative. t is
    computed from the difference of the logits, since the difference of two logarithms would cancel.
    """
    shift = np.take_along_axis(y - x, x.argmax(-1)[..., None], -1)
    e = np.where(np.isinf(x) & (x == y), 0.0, y - x - shift)
    is_near: Flags = np.all(np.abs(e) < 1, axis=-1)
    t = np.where(is_near[..., None], e - np.log1p((p * np.expm1(e)).sum(-1, keepdims=True)), 0.0)
    series = t * t / 2 * (1 + t / 3 * (1 + t / 4 * (1 + t / 5 * (1 + t / 6))))
    terms = np.where(np.abs(t) < 1e-2, series, np.expm1(t) - t)
    return (p * terms).sum(-1), is_near


def cosine_distances(x: Floats, y: Floats) -> Floats:
    """1 - cos of each row. Equal infinities add nothing; rows with other non-finite values give NaN."""
    same = np.isinf(x) & (x == y)
    u, v = (_unit(np.where(same, 0.0, side)) for side in (x, y))
    is_zero = [~side.any(-1) for side in (u, v)]
    apart = np.square(u - v).sum(-1) / 2  # 1 - u.v without the cancellation
    return np.where(is_zero[0] | is_zero[1], np.where(is_zero[0] & is_zero[1], 0.0, 1.0), apart)


def _unit(x: Floats) -> Floats:
    """Rows scaled to length 1; rows of zeros stay zero."""
    scaled = x / np.where((peak := np.abs(x).max(-1, keepdims=True)) == 0, 1.0, peak)
    norm = np.sqrt(np.square(scaled).sum(-1, keepdims=True))
    unit: Floats = scaled / np.where(norm == 0, 1.0, norm)
    return unit


def _agreement(x: Floats, y: Floats) -> tuple[float, float]:
    """Top-1 and top-k agreement. A row with a NaN agrees with nothing."""
    has_no_nan = ~(np.isnan(x).any(-1) | np.isnan(y).any(-1))
    k = min(K, x.shape[-1])
    top_1 = (x.argmax(-1) == y.argmax(-1)) & has_no_nan
    both = (_is_top(x, k) & _is_top(y, k)).sum(-1)
    return float(top_1.mean()), float((np.minimum(both, k) * has_no_nan).mean() / k)


def _is_top(x: Floats, k: int) -> Flags:
    """Which values are among the k largest, including all that tie with the last of them."""
    least = np.partition(x, -k, axis=-1)[..., -k : x.shape[-1] - k + 1]
    is_top: Flags = x >= least
    return is_top


def combined(diffs: Iterator[LogitsDiff]) -> LogitsDiff | None:
    """Combine the results of several pairs; None if there are none."""
    parts = list(diffs)
    return _joined(parts, parts[0].k, sum(part.of for part in parts)) if parts else None
