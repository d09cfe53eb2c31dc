"""The quick way through a ``.safetensors`` header that is as it should be.

A header may have a hundred thousand rows, and taking each apart in Python would be most of what opening takes. Here
all are checked as they are parsed. What is not perfect in every row gets no sentence here: ``safetensors_header``
then goes the plain way, which says what is wrong.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """What a header says of one tensor. The metadata parses as one too, without a place."""

    dtype: str = ""
    shape: tuple[Count, ...] = ()
    data_offsets: tuple[Count, Count] | None = None


class _Metadata(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)


_claims = msgspec.json.Decoder(dict[str, Claim])
_metadata = msgspec.json.Decoder(_Metadata)
_FIELDS = (b'"dtype"', b'"shape"', b'"data_offsets"')
_METADATA = "__metadata__"


def parse_claims(text: bytes) -> tuple[dict[str, Claim], dict[str, str]] | None:
    """All claims by name, and the metadata; None where the header is anything but plain."""
    try:
        claims, metadata = _claims.decode(text), _metadata.decode(text).metadata
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    claims.pop(_METADATA, None)
    # A name or a field given twice would be lost in parsing. Without escapes, as often as the word stands there, so
    # often it is a field.
    is_plain = b"\\" not in text and all(text.count(field) == len(claims) for field in _FIELDS)
    return (claims, metadata) if is_plain and text.count(b'"__metadata__"') <= 1 else None
