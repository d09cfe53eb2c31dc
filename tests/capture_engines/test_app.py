"""The keys ``i``, ``c`` and ``o`` of the app on candidates that run in environments of their own."""

from __future__ import annotations

import pytest

from tensordiff.capture.provenance import decode_tokens
from tensordiff.session.request import Request
from tensordiff.session.session import Session
from tensordiff.tui.jobs.job_line import JobLine
from tests.capture_engines.checkpoints import scaled_norm
from tests.capture_engines.models import LLAMAS, NAMES, ModelCase
from tests.capture_engines.running import STEPS, WRONG, Shelf
from tests.tui.app_host import Running, running
from tests.tui.conftest import notifications_that_stay as notifications_that_stay
from tests.tui.conftest import patient_pilot as patient_pilot

SIZE = (160, 48)
SAID_OF_OPERATIONS = {
    "llamacpp": "op_05_aten.mul.Tensor",
    "mlx": "what MLX computes within a module cannot be seen",
}
"""The operation that is wrong, or why there is none; those of vLLM are tested with its own tests."""


async def ended(run: Running) -> None:
    """Until the child is gone and what it made is shown."""
    await run.until(lambda: any(line.run is None for line in run.screen.query(JobLine)))
    await run.settle()
    await run.settle()


def session_of(run: Running) -> Session:
    session = run.owner.session
    assert session is not None
    return session


def blamed(run: Running) -> str | None:
    outcome = run.owner.outcome
    return None if outcome is None or outcome.culprit is None else outcome.culprit.pair.name


@pytest.mark.parametrize("case", LLAMAS, ids=str)
async def test_a_candidate_is_run_again_and_injected_from_the_app(shelf: Shelf, case: ModelCase) -> None:
    wrong, source = NAMES[case.name].norm, shelf.source(case.engine.kind, case.name, scaled_norm)
    reference, candidate = shelf.reference(case.name), shelf.capture(source)
    async with running(Request(reference, candidate, learn=False), SIZE) as run:
        tokens = decode_tokens(session_of(run).reference, STEPS)
        assert decode_tokens(session_of(run).candidate, STEPS) != tokens, "it chose others by itself"
        await run.press("c", "ctrl+s")
        await ended(run)
        again = session_of(run).candidate
        assert again.path != candidate and decode_tokens(again, STEPS) == tokens, run.said()
        assert blamed(run) == wrong
        await run.press("n", "i", "down", "ctrl+s")  # every matched layer, each by itself
        await ended(run)
        assert run.screen.reruns.mode() == "injected: rerun", run.said()
        assert blamed(run) == wrong
        errors = zip(run.table.listing.labels, run.table.listing.column("injected"), strict=True)
        isolated = {name: error for name, error in errors if name.endswith(("_proj", "norm"))}
        assert {name for name, error in isolated.items() if error > WRONG} == {wrong}
        assert len(isolated) > 10


@pytest.mark.parametrize("case", [case for case in LLAMAS if case.engine.kind in SAID_OF_OPERATIONS], ids=str)
async def test_operations_of_the_wrong_layer_are_opened_or_refused(shelf: Shelf, case: ModelCase) -> None:
    reference, said = shelf.reference(case.name), SAID_OF_OPERATIONS[case.engine.kind]
    candidate = shelf.capture(shelf.source(case.engine.kind, case.name, scaled_norm))
    async with running(Request(reference, candidate, learn=False), SIZE) as run:
        first = run.screen
        await run.press("n", "o")
        if case.engine.kind == "mlx":
            assert said in run.said() and run.screen is first
            return
        await run.until(lambda: run.screen is not first and run.owner.outcome is not None)
        await run.settle()
        assert said in str(blamed(run))
