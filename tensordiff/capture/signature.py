"""Whether it was this user who had a source run: a signature in the manifest, by the user's key (``util.user_key``).

A dump may come from anyone, and what it says to run may be anything. So the process that starts a capture signs source
and settings, which it knows before the child starts, and the child writes the signature into the manifest without ever
seeing the key. Signed is what was run and how, not what came of it: whoever copies a signature into another dump can
make its owner run again what they have run before, exactly so, and nothing else. That is why nothing that is named
relative to a folder is signed: in another folder it would be something else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from tensordiff.capture.job import Job
from tensordiff.util import user_key

_PURPOSE = "tensordiff.capture/1"


def sign(job: Job) -> str | None:
    """The signature of what a job runs, and how; None where that depends on the current folder."""
    if not (job.source.is_absolute and all(map(os.path.isabs, job.settings.files().values()))):
        return None
    facts = job.facts()
    text = _text(facts["source"], facts["settings"])
    return None if text is None else user_key.sign(_PURPOSE, text)


def why_not_own(source: str, settings: Mapping[str, Any], signature: object) -> str:
    """Why a source and its settings are not known to be of this user's own capture; nothing where they are."""
    text = _text(source, settings)
    if text is None:
        return "it is not signed"  # what is not JSON never was
    return user_key.why_not_own(_PURPOSE, text, signature)


def _text(source: str, settings: Mapping[str, Any]) -> str | None:
    """What is signed; None where it is not JSON."""
    try:
        return json.dumps([source, settings], sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
