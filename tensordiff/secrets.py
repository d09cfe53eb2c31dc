"""Passwords and queries of URLs that a person gave, and text without them.

The command line keeps the secrets of all its words before it does anything else, whatever these words are for, and
``user_path`` those of every URL that reaches it in another way. ``printable`` masks them where they stand as in a URL.
A message, such as an error or a traceback, is read by nobody as data, so there they are masked as words by themselves,
too: a library may quote half a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

_MASK = "…"
_SHORTEST = 4
"""Characters of a secret that is masked as a word by itself; a shorter one would take other words with it."""
_NEXT_OF_CHAIN = re.compile(r"::(?=[A-Za-z][\w+.-]*:)")
_AUTHORITY = re.compile(r"[^/?#]*")


class _KnownSecrets:
    """What is masked: patterns of secrets in their places, and the secrets themselves."""

    def __init__(self) -> None:
        self.url_patterns: set[str] = set()
        self.words: set[str] = set()
        self.url_mask: re.Pattern[str] | None = None
        self.message_mask: re.Pattern[str] | None = None

    def add(self, url_patterns: set[str], words: set[str]) -> None:
        if url_patterns <= self.url_patterns and words <= self.words:
            return
        self.url_patterns |= url_patterns
        self.words |= words
        self.url_mask = _any_of(self.url_patterns)
        whole = {rf"(?<!\w){re.escape(word)}(?!\w)" for word in self.words if len(word) >= _SHORTEST}
        self.message_mask = _any_of(self.url_patterns | whole)

    def clear(self) -> None:
        self.__init__()  # type: ignore[misc]


def _any_of(patterns: set[str]) -> re.Pattern[str]:
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)))  # the longest secret that fits


_secrets = _KnownSecrets()


def keep_secrets(*words: str) -> None:
    """Keep what must not be shown of the URLs in these words, be they options, sources, chains or prose."""
    for word in words:
        for text in {word, *word.split()}:
            for mark in re.finditer("://", text):
                _keep_secrets_of(_NEXT_OF_CHAIN.split(text[mark.end() :])[0])


def masked(text: str) -> str:
    """Text without these secrets where they stand as in a URL."""
    return text if _secrets.url_mask is None else _secrets.url_mask.sub(_MASK, text)


def masked_message(text: str) -> str:
    """Text that is no data, without these secrets wherever they stand."""
    return text if _secrets.message_mask is None else _secrets.message_mask.sub(_MASK, text)


def has_misplaced_password(after_scheme: str) -> bool:
    """Whether a password ends the host's part of a URL too early, as one with a slash in it does."""
    authority = _authority(after_scheme)
    _, colon, port = authority.rpartition(":")
    return "@" not in authority and bool(colon) and not port.isdigit() and "@" in after_scheme[len(authority) :]


def _authority(after_scheme: str) -> str:
    found = _AUTHORITY.match(after_scheme)
    return found[0] if found else ""


def _keep_secrets_of(after_scheme: str) -> None:
    """Keep the secrets of one URL, given without its scheme."""
    url_patterns, words = set(), set()
    is_misplaced = has_misplaced_password(after_scheme)
    user, _, _ = (after_scheme if is_misplaced else _authority(after_scheme)).rpartition("@")
    for password in _spellings(user.partition(":")[2]):
        words.add(password)
        url_patterns.add(rf"(?<!\w){re.escape(password)}(?=@)")
    query = after_scheme.partition("?")[2]
    for whole in _spellings(query):
        words.add(whole)
        url_patterns.add(rf"(?<=\?){re.escape(whole)}")
    for part in re.split("[&;#]", query):
        name, equals, _ = part.partition("=")
        for value in _spellings(part[len(name) + 1 :] if equals else part):
            words.add(value)
            if equals:
                url_patterns.add(rf"(?<=[?&;]{re.escape(name)}=){re.escape(value)}(?![\w%])")
    _secrets.add(url_patterns, words)


def _spellings(secret: str) -> Iterator[str]:
    """A secret as it was given, as libraries write it, and as Python quotes it."""
    plain = unquote(secret)
    yield from {secret, plain, quote(plain, safe=""), repr(secret)[1:-1], repr(plain)[1:-1]} - {""}
