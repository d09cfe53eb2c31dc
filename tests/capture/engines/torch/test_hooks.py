from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensordiff
from tensordiff.dump import open_dump

torch: Any = pytest.importorskip("torch")
nn: Any = torch.nn


class Twice(nn.Module):  # type: ignore[misc]
    """Calls one part twice, writes over what a part gave, and names a point of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.relu = nn.Linear(3, 3, bias=False), nn.ReLU(inplace=True)
        self.part.weight.data = torch.eye(3)

    def forward(self, x: Any, *, shift: Any = None) -> Any:
        first = self.part(x)
        self.relu(first)
        tensordiff.tap("between", (first, {"shift": shift}))
        return self.part(first + (0 if shift is None else shift))


def hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def names(path: Path) -> list[str]:
    return [entry.name for entry in open_dump(path).entries]


def test_all_that_a_module_is_given_and_gives_is_there_in_order(tmp_path: Path) -> None:
    model = Twice()
    with tensordiff.capture(model, tmp_path / "d") as capturing:
        model(-torch.ones(3), shift=torch.ones(()))
    assert names(tmp_path / "d") == [
        "model-input_0", "model-input_shift", "model.part-input_0", "model.part-output", "model.relu-input_0",
        "model.relu-output", "model/between-output_0", "model/between-output_1_shift", "model.part(2)-input_0",
        "model.part(2)-output", "model-output",
    ]  # fmt: skip
    assert capturing.entries == 11
    assert capturing.notes == []
    assert hooks(model) == 0


def test_what_was_seen_does_not_change_when_it_is_written_over(tmp_path: Path) -> None:
    model = Twice()
    with tensordiff.capture(model, tmp_path / "d"):
        model(-torch.ones(3))
    entries = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries}
    assert entries["model.part-output"].tolist() == [-1, -1, -1]
    assert entries["model.relu-output"].tolist() == [0, 0, 0]


def test_every_call_of_the_whole_is_a_step(tmp_path: Path) -> None:
    model = Twice()
    with tensordiff.capture(model, tmp_path / "d"):
        model(torch.ones(3))
        model(torch.ones(3))
    entries = open_dump(tmp_path / "d").entries
    assert [entry.step for entry in entries if entry.name == "model-output"] == [0, 1]
    assert {(entry.call, entry.step) for entry in entries if entry.layer == "model.part"} == {
        (1, 0), (2, 0), (1, 1), (2, 1),
    }  # fmt: skip


def test_a_class_and_its_place_are_recorded(tmp_path: Path) -> None:
    model = Twice()
    with tensordiff.capture(model, tmp_path / "d"):
        model(torch.ones(3))
    origins = {entry.layer: entry.origin for entry in open_dump(tmp_path / "d").entries}
    whole, part = origins["model"], origins["model.part"]
    assert whole is not None
    assert part is not None
    assert (whole.module_class, part.module_class) == ("Twice", "Linear")
    assert str(whole.source_file).endswith("test_hooks.py")
    assert part.source_file == "torch/nn/modules/linear.py"
    assert isinstance(part.source_line, int)


def test_an_exception_leaves_a_flagged_dump_and_no_hook(tmp_path: Path) -> None:
    model = Twice()
    with pytest.raises(RuntimeError, match="multiplied"), tensordiff.capture(model, tmp_path / "d"):
        model(torch.ones(4))
    dump = open_dump(tmp_path / "d")
    assert dump.interrupted
    assert [entry.name for entry in dump.entries] == ["model-input_0", "model.part-input_0"]
    assert "RuntimeError" in str(dump.facts["error"])
    assert hooks(model) == 0


def test_a_model_that_catches_an_error_within_goes_on(tmp_path: Path) -> None:
    class Careful(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wrong, self.right = nn.Linear(9, 9), nn.Identity()

        def forward(self, x: Any) -> Any:
            try:
                return self.wrong(x)
            except RuntimeError:
                return self.right(x)

    model = Careful()
    with tensordiff.capture(model, tmp_path / "d"):
        model(torch.ones(3))
    assert names(tmp_path / "d")[-3:] == ["model.right-input_0", "model.right-output", "model-output"]


def test_layers_leaves_and_inputs_can_be_chosen(tmp_path: Path) -> None:
    model = Twice()
    chosen: dict[str, dict[str, Any]] = {"a": {"layers": "relu"}, "b": {"leaves": True}, "c": {"inputs": False}}
    for folder, options in chosen.items():
        with tensordiff.capture(model, tmp_path / folder, **options):
            model(torch.ones(3))
    assert {entry.layer for entry in open_dump(tmp_path / "a").entries} == {"model.relu", "model/between"}
    assert "model" not in {entry.layer for entry in open_dump(tmp_path / "b").entries}
    assert not any(entry.is_input for entry in open_dump(tmp_path / "c").entries)


def test_a_budget_is_kept_and_said(tmp_path: Path) -> None:
    model = Twice()
    with tensordiff.capture(model, tmp_path / "d", max_bytes=30) as capturing:
        model(torch.ones(3))
    assert len(names(tmp_path / "d")) == 2
    assert capturing.notes == ["7 tensors were left out: --max-bytes 30 was reached"]


def test_nothing_happens_when_nothing_captures() -> None:
    value = object()
    assert tensordiff.tap("x", value) is value


def test_taps_alone_can_be_captured(tmp_path: Path) -> None:
    with tensordiff.capture(None, tmp_path / "d"):
        tensordiff.tap("x", torch.ones(2))
        tensordiff.tap("x", torch.zeros(2))
    assert names(tmp_path / "d") == ["x-output", "x(2)-output"]


def test_an_empty_capture_says_so(tmp_path: Path) -> None:
    with tensordiff.capture(Twice(), tmp_path / "d") as capturing:
        pass
    assert any("nothing ran" in note for note in capturing.notes)


def test_what_is_no_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tensordiff.errors.CaptureError, match=r"expected a torch\.nn\.Module, got int"):
        tensordiff.capture(3, tmp_path / "d")
    with pytest.raises(tensordiff.errors.CaptureError, match=r"^model: is not a source; write hf:PATH_OR_ID"):
        tensordiff.capture("model", tmp_path / "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_run_eagerly_and_it_is_said(tmp_path: Path) -> None:
    model = Twice()
    compiled = torch.compile(model, backend="eager")
    with tensordiff.capture(compiled, tmp_path / "d") as capturing:
        compiled(torch.ones(3))
    assert any("eager" in note for note in capturing.notes)
    assert "model._orig_mod.part-output" in names(tmp_path / "d")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_hooks_that_stay_silent_are_said(tmp_path: Path) -> None:
    model = nn.Sequential(torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())))
    with tensordiff.capture(model, tmp_path / "d") as capturing:
        model(torch.ones(3))
    assert names(tmp_path / "d") == ["model-input_0", "model-output"]
    assert any("TorchScript" in note for note in capturing.notes)


def test_a_model_that_goes_past_its_parts_is_said(tmp_path: Path) -> None:
    class Past(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.part.forward(x)

    model = Past()
    with tensordiff.capture(model, tmp_path / "d") as capturing:
        model(torch.ones(3))
    assert any("no hook within the model fired" in note for note in capturing.notes)


def test_the_package_is_a_module_and_can_be_called() -> None:
    import tensordiff.capture.settings
    from tensordiff import capture

    assert capture.settings.Settings is tensordiff.capture.settings.Settings  # type: ignore[attr-defined]
    assert callable(capture)
    with pytest.raises(AttributeError, match="no attribute 'captur'"):
        _ = tensordiff.captur


def test_values_are_those_that_torch_computed(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh())
    x = torch.randn(2, 5)
    with tensordiff.capture(model, tmp_path / "d"):
        y = model(x)
    entries = {entry.name: entry.read() for entry in open_dump(tmp_path / "d").entries}
    assert np.array_equal(entries["model-output"], y.detach().numpy())


def test_a_model_that_runs_in_several_threads_keeps_its_calls_apart(tmp_path: Path) -> None:
    model = nn.Sequential(Twice(), Twice())
    with tensordiff.capture(model, tmp_path / "d"), ThreadPoolExecutor(4) as pool:
        given = list(pool.map(model, [torch.full((3,), float(k)) for k in range(24)]))
    entries = open_dump(tmp_path / "d").entries
    places = [(entry.name, entry.step) for entry in entries]
    assert len(set(places)) == len(places) == 24 * 20
    # In every step what the whole was given went through that step's own parts, whatever else ran meanwhile.
    values = {(entry.name, entry.step): entry.read().tolist() for entry in entries}
    assert all(values["model-input_0", k] == values["model.0.part-output", k] for k in range(24))
    assert sorted(values["model-output", k] for k in range(24)) == sorted(one.tolist() for one in given)


def test_a_point_is_named_after_what_runs_even_after_an_error_was_caught(tmp_path: Path) -> None:
    class Bad(nn.Module):  # type: ignore[misc]
        def forward(self, _: Any) -> Any:
            raise ValueError("no")

    class Catches(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bad = Bad()

        def forward(self, x: Any) -> Any:
            with suppress(ValueError):
                self.bad(x)
            return tensordiff.tap("after", x + 1)

    model = Catches()
    with tensordiff.capture(model, tmp_path / "d"):
        try:
            int("none")
        except ValueError:
            model(torch.ones(2))  # an error that is being handled around it is not its own
        tensordiff.tap("outside", torch.ones(1))
    assert names(tmp_path / "d") == [
        "model-input_0", "model.bad-input_0", "model/after-output", "model-output", "outside-output",
    ]  # fmt: skip


def test_two_values_whose_names_are_spelled_alike_are_both_there(tmp_path: Path) -> None:
    class Alike(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            return {"a_b": x, "a": {"b": x + 1}}

    model = Alike()
    with tensordiff.capture(model, tmp_path / "d", inputs=False):
        model(torch.zeros(2))
    entries = {entry.name: entry.read().tolist() for entry in open_dump(tmp_path / "d").entries}
    assert entries == {"model-output_a_b": [0, 0], "model-output_a_b_2": [1, 1]}


def test_what_stands_for_many_at_once_is_left_out_and_said(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3))
    with tensordiff.capture(model, tmp_path / "d") as capturing:
        given = torch.vmap(model)(torch.ones(4, 3))
    assert given.shape == (4, 3)
    assert any("torch.vmap" in note for note in capturing.notes)


class Shared(nn.Module):  # type: ignore[misc]
    """Two parts that hold one activation, as vLLM's GPT-2 has it; and one that nobody of those who hold it calls."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.first, self.second = (nn.Sequential(nn.Linear(3, 3), act) for _ in range(2))
        self.other = act

    def forward(self, x: Any) -> Any:
        return self.other(self.second(self.first(x)))


def test_a_module_that_several_hold_is_named_after_the_one_that_runs(tmp_path: Path) -> None:
    model = Shared()
    with tensordiff.capture(model, tmp_path / "d"):
        model(torch.ones(3))
    outputs = [name for name in names(tmp_path / "d") if name.endswith("output")]
    assert outputs == [
        "model.first.0-output", "model.first.1-output", "model.first-output", "model.second.0-output",
        "model.second.1-output", "model.second-output", "model.other-output", "model-output",
    ]  # fmt: skip
    assert hooks(model) == 0


def test_a_shared_module_is_named_after_who_calls_it(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=32, n_embd=16, n_head=2, n_layer=3, n_positions=16)
    model = transformers.GPT2Model(config).eval()
    for folder in ("each", "shared"):
        with torch.no_grad(), tensordiff.capture(model, tmp_path / folder):
            model(input_ids=torch.arange(5)[None])
        for block in model.h:  # as vLLM has one activation for all blocks
            block.mlp.act = model.h[0].mlp.act
    assert "model.h.2.mlp.act-output" in names(tmp_path / "each")
    assert names(tmp_path / "shared") == names(tmp_path / "each")


def test_one_activation_of_all_blocks_is_each_blocks_own(tmp_path: Path) -> None:
    act = nn.GELU()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(3, 3), act) for _ in range(3)))
    with tensordiff.capture(model, tmp_path / "d", layers=r"\.2\.1$"):
        model(torch.ones(3))
    assert names(tmp_path / "d") == ["model.2.1-input_0", "model.2.1-output"]
