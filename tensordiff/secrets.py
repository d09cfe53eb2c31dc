"""Passwords and query strings of the URLs that a user gave, and how to remove them from text.

The command line registers the secrets of all its arguments before it does anything else, whatever those arguments mean.
``user_path`` registers those of URLs that arrive any other way. ``printable`` masks a secret only where it stands as
part of a URL, so that data stays readable. Messages such as errors and tracebacks are never parsed as data, so there a
secret is masked as a word of its own, too: a library may quote only half of a URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import quote, unquote

_MASK = "…"
_SHORTEST = 4
"""Minimum length of a secret that is masked as a word of its own; a shorter one would hide unrelated words."""
_NEXT_OF_CHAIN = re.compile(r"::(?=[A-Za-z][\w+.-]*:)")
_AUTHORITY = re.compile(r"[^/?#]*")


class _KnownSecrets:
    """The registered secrets: patterns that match them inside URLs, and the secrets themselves."""

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
    return re.compile("|".join(sorted(patterns, key=len, reverse=True)))  # try the longest secret first


_secrets = _KnownSecrets()


def keep_secrets(*words: str) -> None:
    """Register the secrets of all URLs in these words, which may be options, sources, URL chains or prose."""
    for word in words:
        for text in {word, *word.split()}:
            for mark in re.finditer("://", text):
                _keep_secrets_of(_NEXT_OF_CHAIN.split(text[mark.end() :])[0])


def masked(text: str) -> str:
    """Mask secrets only where they stand as part of a URL."""
    return text if _secrets.url_mask is None else _secrets.url_mask.sub(_MASK, text)


def masked_message(text: str) -> str:
    """Mask secrets wherever they stand; only for text that is not data."""
    return text if _secrets.message_mask is None else _secrets.message_mask.sub(_MASK, text)


def has_misplaced_password(after_scheme: str) -> bool:
    """Whether a password contains a character, such as a slash, that ends the host part of the URL too early."""
    authority = _authority(after_scheme)
    _, colon, port = authority.rpartition(":")
    return "@" not in authority and bool(colon) and not port.isdigit() and "@" in after_scheme[len(authority) :]


def _authority(after_scheme: str) -> str:
    found = _AUTHORITY.match(after_scheme)
    return found[0] if found else ""


def _keep_secrets_of(after_scheme: str) -> None:
    """Register the secrets of one URL, given without its scheme."""
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
    """Ways a secret may be spelled: as given, decoded, URL-encoded as libraries do, and quoted as Python does."""
    plain = unquote(secret)
    yield from {secret, plain, quote(plain, safe=""), repr(secret)[1:-1], repr(plain)[1:-1]} - {""}
