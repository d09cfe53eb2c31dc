"""A model inside vLLM as a torch program: one step of vLLM's scheduler is one call.

vLLM calls the model itself, from within its engine. So the program's model is a module that holds the parts of vLLM's
model, under the names that transformers has. Its ``forward`` makes the engine do one step: the prompt, then one token
each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from vllm import LLM, PoolingParams, SamplingParams
from vllm.model_executor.layers.pooler import Pooler
from vllm.v1.sample.logits_processor import LogitsProcessor

from tensordiff.capture.engines.torch.facts import about_model
from tensordiff.capture.engines.torch.program import Step, Steps
from tensordiff.capture.process.tokens import Tokens
from tensordiff.errors import CaptureError

_REQUESTS = count()


class ForcedToken(LogitsProcessor):  # type: ignore[misc]
    """Makes vLLM's sampler choose a given token, whatever the logits. vLLM makes the instance, so the token is a class
    attribute.
    """

    token: ClassVar[int | None] = None
    """The token of the running step; None leaves the choice to the logits."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        """Takes vLLM's arguments, and needs none of them."""

    def apply(self, logits: Tensor) -> Tensor:
        """Called with the logits of the last token, after the model."""
        if self.token is None:
            return logits
        settled = torch.full_like(logits, float("-inf"))
        settled[:, self.token] = 0.0
        return settled

    def is_argmax_invariant(self) -> bool:
        """False: the point of this processor is to change the most likely token."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Does nothing: there is one request at a time, and no state."""


class EngineModule(nn.Module):  # type: ignore[misc]
    """The model inside an engine.

    For a model that generates, the output is the logits of the last token: vLLM computes no others. For one that pools,
    it is every token's state, and the pooled embedding.
    """

    stands_for: ClassVar[type[nn.Module]]

    def __init__(self, llm: LLM) -> None:
        super().__init__()
        self._llm = [llm]  # in a list, so that torch does not register it
        self.inner = [inner_model(llm)]
        own = type(self.inner[0])
        self.__class__ = type(own.__name__, (EngineModule,), {"stands_for": own})  # dumps name a module by its class
        show_scaled_embedding(self.inner[0])
        for name, child in self.inner[0].named_children():
            if not _only_pools(child):
                self.add_module(name, child)
        for module in (self.inner[0], *self.modules()):
            _enable_hooks(module)
            _keep_out_of_checkpoints(module)
        self.pools = llm.llm_engine.model_config.runner_type == "pooling"
        self.chosen: int | None = None
        self._given: list[Tensor] = []

    def forward(self, input_ids: Tensor, settled: int | None = None) -> dict[str, Tensor]:  # noqa: ARG002 - recorded
        """Run one step of the scheduler, which gives ``settled`` as the next token or, if None, the most likely one."""
        ForcedToken.token = settled
        self._given = []
        seen = self._output_module().register_forward_hook(lambda _module, _args, given: self._keep(given))
        try:
            outputs = self._llm[0].llm_engine.step()
        finally:
            seen.remove()
        given = self._given[-1:]
        if self.pools:
            return {"last_hidden_state": given[0], **_pooled(outputs)} if given else {}
        self.chosen = _token_of(outputs)
        return {"last_logits": given[0]} if given else {}

    def _keep(self, given: Any) -> None:
        if isinstance(given, Tensor):
            self._given.append(given.clone())

    def _output_module(self) -> nn.Module:
        """The module whose output is that of the whole model."""
        if self.pools:
            return self.inner[0]
        processor = getattr(self, "logits_processor", None)
        if not isinstance(processor, nn.Module):
            raise CaptureError(f"{type(self.inner[0]).__name__} gives neither logits nor embeddings that can be seen")
        return processor


class ScaledEmbedding(nn.Module):  # type: ignore[misc]
    """An embedding together with its scaling, which transformers has in one module."""

    def __init__(self, table: nn.Module, scaled: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = table.weight
        self._scaled = scaled

    def forward(self, input_ids: Tensor) -> Tensor:
        """The rows of tokens, scaled."""
        return self._scaled(input_ids)


def show_scaled_embedding(model: nn.Module) -> None:
    """Name the scaled embedding ``embed_tokens`` in models whose code scales it afterwards, as vLLM's Gemma does.

    The code still finds the table under its name: an instance's own attribute takes precedence over its modules.
    """
    for module in list(model.modules()):
        table = module._modules.get("embed_tokens")
        if isinstance(table, nn.Module) and not isinstance(table, ScaledEmbedding) and _scales(module):
            module.__dict__["embed_tokens"] = table
            module._modules["embed_tokens"] = scaled = ScaledEmbedding(table, module.embed_input_ids)
            module.__dict__["embed_input_ids"] = scaled


def _scales(module: nn.Module) -> bool:
    return hasattr(module, "embed_input_ids") and any(name in module._buffers for name in ("normalizer", "embed_scale"))


def _only_pools(module: nn.Module) -> bool:
    """Whether a module makes one vector of all tokens without weights of its own.

    Its output is the model's own. Other models give this name to a layer with weights, such as BERT's after its first
    token.
    """
    return isinstance(module, Pooler) and next(module.parameters(), None) is None


def inner_model(llm: LLM) -> nn.Module:
    """The model that an engine in this process runs."""
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model
    if not isinstance(model, nn.Module):
        raise CaptureError(f"vLLM holds a {type(model).__name__} as its model, and a torch module is needed")
    return model


def _enable_hooks(module: nn.Module) -> None:
    """Make a module's class call hooks: classes that vLLM would compile have a ``__call__`` of their own, which calls
    none.
    """
    if type(module).__call__ is not nn.Module.__call__:
        type(module).__call__ = nn.Module.__call__


def _keep_out_of_checkpoints(module: nn.Module) -> None:
    """Mark buffers that vLLM makes for itself, such as the scales of a quantized cache in ``attn``, as no
    parameters.
    """
    module._non_persistent_buffers_set |= {name for name in module._buffers if name.startswith("_")}


def _token_of(outputs: Any) -> int | None:
    ids = [output.outputs[0].token_ids for output in outputs if getattr(output, "outputs", None)]
    return int(ids[-1][-1]) if ids and len(ids[-1]) else None


def _pooled(outputs: Any) -> dict[str, Tensor]:
    found = [output.outputs.data for output in outputs if isinstance(getattr(output.outputs, "data", None), Tensor)]
    return {"embedding": found[-1].clone()} if found else {}


class EngineProgram:
    """A model in vLLM and the tokens it is run on."""

    def __init__(self, llm: LLM, tokens: Tokens, steps: int) -> None:
        self._llm, self._tokens, self._count = llm, tokens, steps
        self._module = EngineModule(llm).eval()
        self.following = list(tokens.following)

    def steps(self) -> Steps:
        """The prompt, then one token a step. The first run fixes the tokens of later steps."""
        engine = self._llm.llm_engine
        while engine.has_unfinished_requests():
            engine.step()
        engine.add_request(
            f"tensordiff-{next(_REQUESTS)}", {"prompt_token_ids": list(self._tokens.ids)}, self._params()
        )
        ids = list(self._tokens.ids)
        for step in range(self._count):
            settled = self.following[step] if step < len(self.following) else None
            yield Step(self._module, (), {"input_ids": torch.tensor([ids]), "settled": settled})
            if self._module.pools:
                return
            if self._module.chosen is None:
                raise CaptureError("vLLM gave no token; its scheduler may have split the prompt: give a shorter one")
            if step == len(self.following):
                self.following.append(self._module.chosen)
            ids = [self._module.chosen]

    def _params(self) -> SamplingParams | PoolingParams:
        if not self._module.pools:
            return SamplingParams(temperature=0, max_tokens=self._count, ignore_eos=True, detokenize=False)
        if self._count > 1:
            name = type(self._module.inner[0]).__name__
            raise CaptureError(f"--steps: {name} gives no logits to go on from; capture one step")
        return PoolingParams(task="embed")

    def facts(self) -> Mapping[str, Any]:
        """The prompt, the tokens, and the model."""
        return {
            "prompt": self._tokens.prompt,
            "token_ids": list(self._tokens.ids),
            "decode_token_ids": self.following[: self._count - 1],
            "model": about_model(self._module),
        }
