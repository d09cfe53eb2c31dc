"""Regular expressions from users and files: they mean what Python's ``re`` says, and none runs for ever.

A few characters such as ``(a+)+$`` keep a backtracking engine busy for longer than the age of the universe, and ``re``
has no time limit. So every expression from a command line, a file or a field of the app becomes a ``UserRegex``, and
nothing outside this module passes such text to ``re``:

- If the repeats of an expression are not nested, an upper bound of its steps can be computed. ``re`` searches a text
  that is short enough for that bound to be small; this covers nearly all expressions and names.
- Otherwise the package ``regex`` searches. It backtracks as well, but supports a timeout and lets other threads run.
  Its dialect is brought to that of ``re``: a brace that counts nothing is a literal, and negated sets are kept apart.
- The time limit is for all texts together, so that a hundred thousand names cannot take a second each.
- Length, character classes and counts are limited, because compiling takes time and memory, too.

Our own expressions, which are tested, use ``re`` directly.
"""

from __future__ import annotations

import re
import threading
import time
import warnings
from collections.abc import Iterable
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]  # the only way to get at the parts of an expression
from typing import Any, NamedTuple

from tensordiff.errors import AlignError, printable

LONGEST = 10_000
"""Most characters of an expression, and of the shortest text that it may match."""
SECONDS = 1.0
"""The time that one expression may take in all."""
LONGEST_RESULT = 20_000
"""Most characters that a replacement may produce: rules that each double a name would fill the memory."""
_QUICK_S = 50e-6  # quicker searches are not counted
_STEPS = 1e6  # for one search by ``re``: some milliseconds
_QUICK_STEPS = 1e4  # of one character each: they take no longer than _QUICK_S, so the search is not even timed
_MANY_CLASSES = 32  # classes beyond Latin-1, each of which takes ``re`` a hundredth of a second to compile
_SMALL_COUNT = 64  # a repeat with a higher count is treated as unbounded

_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?:\d+(?:,\d*)?|,\d*)\}|.", re.DOTALL)


class UserRegex:
    """An expression from outside, with the time that it may still take. A new instance has the full time again."""

    def __init__(self, what: str, text: str) -> None:
        """``what`` says where the text comes from, such as ``--only``; raises ``AlignError`` for a bad expression."""
        self.plain, self.plain_up_to, self.untimed_up_to = _compiled(what, text)
        self.what, self.text, self.seconds_left = what, text, SECONDS
        self._clock = time.perf_counter

    def __repr__(self) -> str:
        return f"UserRegex({self.what!r}, {self.text!r})"

    def matches(self, text: str) -> bool:
        """Whether the expression is found anywhere in a text."""
        if len(text) <= self.untimed_up_to:
            return self.plain.search(text) is not None
        clock = self._clock
        start = clock()
        match = self.plain.search(text) if len(text) <= self.plain_up_to else self._limited("search", text)
        if clock() - start > _QUICK_S:
            self._count(clock() - start, text)
        return match is not None

    def sub(self, replacement: str, text: str) -> str:
        """The text with every match replaced. The replacement must have passed ``check_replace``."""
        clock = self._clock
        start = clock()
        if len(text) <= self.plain_up_to:
            result = self.plain.sub(replacement, text)
        else:
            result = self._limited("sub", replacement, text)
        if clock() - start > _QUICK_S:
            self._count(clock() - start, text)
        if len(result) > LONGEST_RESULT:
            raise AlignError(
                f"{self._name} makes {len(result):,} characters of the name {_shown(text)}; let it replace less"
            )
        return result

    def _count(self, seconds: float, text: str) -> None:
        """Subtract a time from what is left.

        The first slow search is not counted, since another process may have had the processor; from then on the clock
        counts the time of this thread only.
        """
        if self._clock is time.perf_counter:
            self._clock = time.thread_time
            return
        self.seconds_left -= seconds
        if self.seconds_left <= 0:
            raise self._too_slow(text)

    def _limited(self, method: str, *texts: str) -> Any:
        if self.seconds_left <= 0:
            raise self._too_slow(texts[-1])
        try:
            return getattr(self._engine, method)(*texts, timeout=self.seconds_left, concurrent=True)
        except TimeoutError as error:
            self.seconds_left = 0.0
            raise self._too_slow(texts[-1]) from error

    @property
    def _engine(self) -> Any:
        """The expression compiled by ``regex``, which is imported only here, since few expressions need it."""
        try:
            return _limited_engine(self.text)
        except ImportError as error:
            why = "takes the package regex, which this Python lacks; install it, or write it without nested repeats"
            raise AlignError(f"{self._name} {why}") from error
        except (RecursionError, ValueError, MemoryError, OverflowError) as error:
            raise AlignError(f"{self._name} is nested too deeply to be tried; write it in a simpler way") from error

    def _too_slow(self, text: str) -> AlignError:
        took = f"took more than {SECONDS:g} s, last on the name {_shown(text)}"
        return AlignError(f"{self._name} {took}; write it without a repeat inside of a repeat, such as (a+)+")

    @property
    def _name(self) -> str:
        return f"{printable(self.what)} {_shown(self.text)}"


def _shown(text: str) -> str:
    return printable(repr(text) if len(text) <= 80 else f"{text[:80]!r}…")


def check_regex(what: str, text: str) -> None:
    """Raise ``AlignError`` for text that is no valid expression, that Python warns about, or that is too large."""
    _compiled(what, text)


def check_replace(match: str, replacement: str) -> None:
    """Raise for a replacement that refers to groups that its expression does not have."""
    groups = {number: name for name, number in re.compile(match).groupindex.items()}
    count = re.compile(match).groups
    # An expression with as many groups of the same names, which takes no time to match.
    same = "".join(f"(?P<{groups[number]}>)" if number in groups else "()" for number in range(1, count + 1))
    try:
        re.compile(same).sub(replacement, "")
    except (re.error, IndexError) as error:
        raise AlignError(printable(f"replace {replacement!r} does not go with its match: {error}")) from error


# --- what an expression may cost ------------------------------------------------------------------


class _Compiled(NamedTuple):
    plain: re.Pattern[str]
    plain_up_to: int
    """The longest text that ``re`` searches in few steps."""
    untimed_up_to: int
    """The longest text that it searches in so few that it would be counted as quick; reading a clock takes longer."""


def _compiled(what: str, text: str) -> _Compiled:
    if len(text) > LONGEST:
        raise AlignError(f"{printable(what)} {_shown(text)} has {len(text):,} characters; the most are {LONGEST:,}")
    try:
        with _warnings_lock, warnings.catch_warnings():
            warnings.simplefilter("error")
            return _compile(text)
    except (re.error, OverflowError, RecursionError, Warning) as error:
        raise AlignError(printable(f"{what} {text!r} is not a regular expression: {error}")) from error
    except _TooLarge as error:
        raise AlignError(f"{printable(what)} {_shown(text)} {error}") from error


_warnings_lock = threading.Lock()  # warning filters are a setting of the whole process


class _TooLarge(Exception):
    """An expression that is too expensive to compile."""


@lru_cache(maxsize=256)
def _compile(text: str) -> _Compiled:
    parsed = _parser.parse(text)
    if parsed.getwidth()[0] > LONGEST:
        raise _TooLarge(f"matches nothing of less than {LONGEST:,} characters, and no name is as long")
    if _count_classes(parsed) > _MANY_CLASSES:
        raise _TooLarge(f"has more than {_MANY_CLASSES} classes of characters beyond Latin-1")
    steps = _sequence_steps(parsed)
    by_character = steps._replace(power=steps.power + 1)  # a step may go through the whole text
    return _Compiled(re.compile(text), steps.longest_text(_STEPS), by_character.longest_text(_QUICK_STEPS))


class _Steps(NamedTuple):
    """An upper bound of the ways to match at one position: ``ways`` times the text's length to the ``power``."""

    ways: float = 1.0
    power: int = 0

    @property
    def is_fixed(self) -> bool:
        return self == _Steps()

    def longest_text(self, steps: float) -> int:
        """The longest text that takes no more steps than that; a search starts at each of its positions."""
        if self.ways > steps:
            return -1
        return int((steps / self.ways) ** (1 / (self.power + 1))) - 1


_UNBOUNDED = _Steps(float("inf"))


def _sequence_steps(items: Iterable[tuple[Any, Any]]) -> _Steps:
    """Consecutive parts: each way of one may be tried with each way of the next."""
    ways, power = 1.0, 0
    for kind, value in items:
        part = _steps(str(kind), value)
        ways, power = ways * part.ways, power + part.power
    return _Steps(ways, power)


def _steps(kind: str, value: Any) -> _Steps:
    match kind:
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT" | "GROUPREF":
            return _Steps()
        case "BRANCH":
            return _any_of(value[1])
        case "SUBPATTERN":
            return _sequence_steps(value[3])
        case "ASSERT" | "ASSERT_NOT":
            return _sequence_steps(value[1])
        case "ATOMIC_GROUP":
            return _sequence_steps(value)
        case "GROUPREF_EXISTS":
            return _any_of([part for part in value[1:] if part is not None])
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _repeat_steps(*value)
    return _UNBOUNDED  # of a newer Python


def _any_of(parts: Iterable[Any]) -> _Steps:
    branches = [_sequence_steps(part) for part in parts]
    return _Steps(sum(part.ways for part in branches), max(part.power for part in branches))


def _repeat_steps(least: Any, most: Any, body: Any) -> _Steps:
    """A repeat of something of fixed length. If the repeated part varies in length itself, there is no useful bound."""
    inner = _sequence_steps(body)
    if int(most) <= 1:
        return _Steps(inner.ways + 1, inner.power)
    if not inner.is_fixed:
        return _UNBOUNDED
    count = max(int(most) - int(least) + 1, int(least))
    return _Steps(float(count)) if count <= _SMALL_COUNT else _Steps(1.0, 1)


def _count_classes(items: Iterable[Any]) -> int:
    """How many character classes hold a character beyond Latin-1."""
    return sum(_count_classes_of(str(item[0]), item[1]) for item in items)


def _count_classes_of(kind: str, value: Any) -> int:
    match kind:
        case "IN":
            return any(_is_wide(str(what), which) for what, which in value)
        case "BRANCH":
            return sum(map(_count_classes, value[1]))
        case "SUBPATTERN":
            return _count_classes(value[3])
        case "ASSERT" | "ASSERT_NOT":
            return _count_classes(value[1])
        case "ATOMIC_GROUP":
            return _count_classes(value)
        case "GROUPREF_EXISTS":
            return sum(_count_classes(part) for part in value[1:] if part is not None)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _count_classes(value[2])
    return 0


def _is_wide(kind: str, value: Any) -> bool:
    return (kind == "RANGE" and value[1] > 0xFF) or (kind == "LITERAL" and value > 0xFF)


# --- the engine with a time limit -----------------------------------------------------------------


@lru_cache(maxsize=64)
def _limited_engine(text: str) -> Any:
    import regex

    return regex.compile("".join(map(_for_regex, _TOKEN.findall(text))), regex.VERSION0)


def _for_regex(token: str) -> str:
    """Translate a token of ``re`` into what ``regex`` understands the same way."""
    if token == "{":  # noqa: S105 - which else begins a fuzzy match
        return r"\{"
    if token.startswith("[^"):  # regex would merge two negated sets that are alternatives
        begin = "[\\" if token[2] == "^" else "["
        return f"(?:(?!{begin}{token[2:]})(?s:.))"
    return token
