"""Asking before anything is run that a dump names and this user did not capture: at a terminal, by a typed yes."""

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
    """Begin what may run something that a dump names; where nobody has agreed to that yet, a person is asked.

    Where there is no terminal to ask on, the refusal is the error: it says what would have been run.
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
    """Show all that would be run, and go on only after a yes that is spelled out."""
    say(f"{offer.what} was not captured by you here: {offer.provenance.doubt}. Running it again would run")
    for line in offer.lines():
        say(f"  {line}")
    if ask("Run that? Type yes to run it, anything else to cancel: ") != "yes":
        raise CaptureError(f"{offer.what} was not run again, as you did not type yes")


def tell_offer(offer: RerunOffer, *, trust_source: bool) -> None:
    """Say what a person should know before a dump is run again: what they trusted, and what a dump cannot ask for."""
    if trust_source and not offer.provenance.is_own:
        say(f"as --trust-source says: {offer.sentence()}")
    for note in offer.notes():
        say(note)
