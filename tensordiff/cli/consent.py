"""Asks for consent before running anything that a dump names and this user did not capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

from tensordiff.cli.streams import ask, has_person, say
from tensordiff.errors import CaptureError
from tensordiff.session.rerun.trust import RerunOffer, Trust, UntrustedSource

T = TypeVar("T")
trust_option = click.option(
    "--trust-source", is_flag=True, help="Run what a dump names, though you did not capture it here (default: ask)."
)


def with_consent(begin: Callable[[Trust], T], *, trust_source: bool) -> T:
    """Start something that may run what a dump names; if nobody has agreed to that yet, ask the user.

    If there is no terminal to ask on, the refusal is raised as the error: it says what would have been run.
    """
    trust = Trust(any_source=trust_source)
    try:
        return begin(trust)
    except UntrustedSource as refused:
        if not has_person():
            raise
        _ask_for_yes(refused.offer)
        return begin(trust.agreeing(refused.offer))


def _ask_for_yes(offer: RerunOffer) -> None:
    """Show everything that would be run, and continue only after a typed yes."""
    say(f"{offer.what} was not captured by you here: {offer.provenance.doubt}. Running it again would run")
    for line in offer.lines():
        say(f"  {line}")
    if ask("Run that? Type yes to run it, anything else to cancel: ") != "yes":
        raise CaptureError(f"{offer.what} was not run again, as you did not type yes")


def tell_offer(offer: RerunOffer, *, trust_source: bool) -> None:
    """Say what the user should know before a dump is run again: what they trusted, and what a dump cannot ask for."""
    if trust_source and not offer.provenance.is_own:
        say(f"as --trust-source says: {offer.sentence()}")
    for note in offer.notes():
        say(note)
