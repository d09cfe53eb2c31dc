"""A model within vLLM as a torch program: one step of vLLM's scheduler is one call.

vLLM calls the model itself, from within its engine. So the program's model is a module that holds the parts of vLLM's,
under the names that transformers has, and whose ``forward`` lets the engine do one step: the prompt, then a token each.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from vllm import LLM, SamplingParams

from tensordiff.capture.engines.torch.facts import about_model
from tensordiff.capture.engines.torch.program import Step, Steps
from tensordiff.capture.engines.vllm.tokens import SettledTokens
from tensordiff.capture.process.tokens import Tokens
from tensordiff.errors import CaptureError

_REQUESTS = count()


class EngineModule(nn.Module):  # type: ignore[misc]
    """The model within an engine. Its last token's logits are its output: vLLM computes no others."""

    def __init__(self, llm: LLM) -> None:
        super().__init__()
        self._llm = [llm]  # in a list, so that torch does not look into it
        self.within = [model_within(llm)]
        for name, child in self.within[0].named_children():
            self.add_module(name, child)
        for module in self.modules():
            _take_hooks(module)
        self.chosen: int | None = None
        self._logits: list[Tensor] = []

    def forward(self, input_ids: Tensor, settled: int | None = None) -> dict[str, Tensor]:  # noqa: ARG002 - it is recorded
        """One step of the scheduler, which gives ``settled`` as the next token, or the likeliest."""
        SettledTokens.token = settled
        seen = self._seen_logits()
        try:
            outputs = self._llm[0].llm_engine.step()
        finally:
            seen.remove()
        self.chosen = _token_of(outputs)
        logits, self._logits = self._logits, []
        return {"last_logits": logits[-1]} if logits else {}

    def _seen_logits(self) -> Any:
        processor = getattr(self, "logits_processor", None)
        if not isinstance(processor, nn.Module):
            raise CaptureError(f"{type(self.within[0]).__name__} gives no logits; vllm: sources are models that do")
        return processor.register_forward_hook(lambda _module, _args, given: self._logits.append(given.clone()))


def model_within(llm: LLM) -> nn.Module:
    """The model that an engine in this process runs."""
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    if not isinstance(model, nn.Module):
        raise CaptureError(f"vLLM holds a {type(model).__name__} as its model, and a torch module is needed")
    return model


def _take_hooks(module: nn.Module) -> None:
    """Classes that vLLM would compile have a ``__call__`` of their own, which calls no hooks."""
    if type(module).__call__ is not nn.Module.__call__:
        type(module).__call__ = nn.Module.__call__


def _token_of(outputs: Any) -> int | None:
    ids = [output.outputs[0].token_ids for output in outputs if getattr(output, "outputs", None)]
    return int(ids[-1][-1]) if ids and len(ids[-1]) else None


class EngineProgram:
    """A model in vLLM and the tokens it is run on."""

    def __init__(self, llm: LLM, tokens: Tokens, steps: int) -> None:
        self._llm, self._tokens, self._count = llm, tokens, steps
        self._module = EngineModule(llm).eval()
        self.following = list(tokens.following)

    def steps(self) -> Steps:
        """The prompt, then one token a step. The first run settles the tokens of later steps."""
        engine = self._llm.llm_engine
        while engine.has_unfinished_requests():
            engine.step()
        sampling = SamplingParams(temperature=0, max_tokens=self._count, ignore_eos=True, detokenize=False)
        engine.add_request(f"tensordiff-{next(_REQUESTS)}", {"prompt_token_ids": list(self._tokens.ids)}, sampling)
        ids = list(self._tokens.ids)
        for step in range(self._count):
            settled = self.following[step] if step < len(self.following) else None
            yield Step(self._module, (), {"input_ids": torch.tensor([ids]), "settled": settled})
            if self._module.chosen is None:
                raise CaptureError("vLLM gave no token; its scheduler may have split the prompt: give a shorter one")
            if step == len(self.following):
                self.following.append(self._module.chosen)
            ids = [self._module.chosen]

    def facts(self) -> Mapping[str, Any]:
        """What it was asked, and what runs."""
        return {
            "prompt": self._tokens.prompt,
            "token_ids": list(self._tokens.ids),
            "decode_token_ids": self.following[: self._count - 1],
            "model": about_model(self._module.within[0]),
        }
