"""What is seen of a model before it is captured again: everything that could change a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from tensordiff.capture.engines.torch.program import Step, Steps  # noqa: E402
from tensordiff.capture.engines.torch.unchanged import StateCheck, state_of  # noqa: E402
from tensordiff.capture.process.reusable_engine import StateChanged  # noqa: E402
from tests.capture.engines.torch.test_facts import quantized  # noqa: E402


def made() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net.register_buffer("unsaved", torch.zeros(2, dtype=torch.bfloat16), persistent=False)
    net.register_buffer("empty", torch.zeros(0))
    net.register_buffer("turned", torch.arange(6.0).reshape(2, 3).t())
    net.register_buffer("one", torch.tensor(True))
    net.plain, net.listed, net.aside = 1.5, [1, {"a": 2}], torch.ones(1, dtype=torch.complex64).conj()
    return net.eval()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "model.0.weight": lambda net: net[0].weight.data.mul_(2),
    "model.1.running_mean": lambda net: net[1].running_mean.numpy().fill(1),  # torch does not know of it
    "model.unsaved": lambda net: net.unsaved.add_(1),
    "model.turned": lambda net: net.turned.copy_(net.turned.flip(0)),
    "model.plain": lambda net: setattr(net, "plain", 1.25),
    "model.listed": lambda net: net.listed[1].update(a=3),
    "model.aside": lambda net: setattr(net, "aside", net.aside * 2),
    "model.new": lambda net: setattr(net, "new", None),
    "model.0._forward_hooks": lambda net: net[0].register_forward_hook(lambda *_: None),
    "model.0.forward": lambda net: setattr(net[0], "forward", net[0].forward),
    "model.1.training": lambda net: net[1].train(),
    "model.1.class": lambda net: net.__setitem__(1, nn.Identity()),
}


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_is_seen_and_named(name: str) -> None:
    net, check = made(), StateCheck(with_inputs=False)
    check.check(Step(net, (), {}))
    check.check(Step(net, (), {}))
    check.check(Step(made(), (torch.ones(1),), {}))
    CHANGES[name](net)
    with pytest.raises(StateChanged, match="is not what it was when the process was new") as refused:
        check.check(Step(net, (), {}))
    assert str(refused.value).startswith(f"{name}: ")


def hooked(*, with_kwargs: int = 0) -> nn.Module:
    net = made()
    for number in range(2):
        net.register_forward_pre_hook(lambda *_: None, with_kwargs=number == with_kwargs)
    return net


def test_hooks_of_a_model_that_is_made_anew_are_the_same() -> None:
    check = StateCheck(with_inputs=False)
    for _ in range(2):
        check.check(Step(hooked(), (), {}))
    with pytest.raises(StateChanged, match="_forward_pre_hooks_with_kwargs"):
        check.check(Step(hooked(with_kwargs=1), (), {}))


def test_a_flag_of_torch_is_seen() -> None:
    check = StateCheck(with_inputs=False)
    check.check(Step(made(), (), {}))
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(StateChanged, match="torch's default dtype"):
            check.check(Step(made(), (), {}))
    finally:
        torch.set_default_dtype(torch.float32)


def test_inputs_are_seen_where_a_function_makes_them() -> None:
    check = StateCheck(with_inputs=True)
    check.check(Step(made(), (torch.ones(2),), {"k": 1}))
    check.check(Step(made(), (torch.ones(2),), {"k": 1}))
    with pytest.raises(StateChanged, match="input_0"):
        check.check(Step(made(), (torch.zeros(2),), {"k": 1}))
    with pytest.raises(StateChanged, match="inputs"):
        check.check(Step(made(), (torch.ones(2),), {"k": 2}))


def test_what_cannot_be_told_is_never_the_same() -> None:
    net, check = made(), StateCheck(with_inputs=False)
    net.register_buffer("sparse", torch.eye(2).to_sparse())
    check.check(Step(net, (), {}))
    with pytest.raises(StateChanged, match=r"model\.sparse"):
        check.check(Step(net, (), {}))


def test_a_weight_that_is_made_when_it_runs_is_seen_to_be_made() -> None:
    net = nn.Sequential(nn.LazyLinear(2)).eval()
    before = state_of(Step(net, (), {}), with_inputs=False)
    assert before == state_of(Step(net, (), {}), with_inputs=False)
    net(torch.ones(1, 3))
    assert before != state_of(Step(net, (), {}), with_inputs=False)


def test_weights_that_are_not_there_have_no_values() -> None:
    with torch.device("meta"):
        net = nn.Linear(2, 2)
    assert state_of(Step(net, (), {}), with_inputs=False) == state_of(Step(net, (), {}), with_inputs=False)


class Counting:
    """Two steps, the second of which is sent what the first gave."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.sent: list[Any] = []

    def steps(self) -> Steps:
        for _ in range(2):
            self.sent.append((yield Step(self.model, (), {})))

    def facts(self) -> dict[str, Any]:
        return {"prompt": "why"}


def test_a_program_is_looked_at_once_and_goes_on_as_it_is() -> None:
    net, check = made(), StateCheck(with_inputs=False)
    own = Counting(net)
    program = check.watch(own)
    steps = program.steps()
    assert next(steps).model is net
    assert steps.send("first").model is net
    with pytest.raises(StopIteration):
        steps.send("second")
    assert own.sent == ["first", "second"]
    assert program.facts() == {"prompt": "why"}
    net.plain = 2.0
    assert next(program.steps()).model is net  # a later pass of the same capture
    with pytest.raises(StateChanged):
        next(check.watch(own).steps())


def test_a_weight_that_wraps_others_is_what_they_are() -> None:
    """As torchao's are, which refuse to be looked at by themselves."""
    same, other = (state_of(Step(quantized(scale), (), {}), with_inputs=False) for scale in (0.5, 0.25))
    assert state_of(Step(quantized(0.5), (), {}), with_inputs=False) == same != other
