"""Two tiny models, captured live: the app opens on them, and ``i``, ``c`` and ``o`` run them again.

Makes a checkpoint with random weights and a small tokenizer of its own, and beside it a user's file that loads the
same checkpoint with one planted bug. Both are captured as anyone would capture theirs. Without a terminal the
comparison is printed instead, with the candidate run a second time on the reference's inputs; finding the bug is
success. Run it as ``python sample_dumps/demo_live.py [FOLDER]``; needs torch and transformers.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

PROMPT = "the first tensor where two runs of the same network stop agreeing"
CANDIDATE = '''"""A port with one thing wrong: a layer's activation is GELU where the checkpoint wants SiLU."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).parent / "model"


def candidate():
    """The model and what it is asked: what tensordiff runs for py:candidate.py:candidate."""
    model = AutoModelForCausalLM.from_pretrained(HERE).eval()
    model.model.layers[2].mlp.act_fn = torch.nn.GELU()
    return model, (), dict(AutoTokenizer.from_pretrained(HERE)({prompt!r}, return_tensors="pt"))
'''


def make_model(folder: Path) -> None:
    """A random four-layer Llama with a tokenizer that knows the prompt's words."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<unk>", *sorted(set(PROMPT.split()))]
    tokenizer = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.model_input_names = ["input_ids", "attention_mask"]
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    noise = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.data += 0.1 * torch.randn(weight.shape, generator=noise)
    model.save_pretrained(folder)


def tensordiff(*args: str) -> int:
    command = [sys.executable, "-m", "tensordiff", *args]
    print("$ tensordiff " + " ".join(args), file=sys.stderr, flush=True)
    return subprocess.run(command, check=False).returncode


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tensordiff-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    make_model(folder / "model")
    (folder / "candidate.py").write_text(CANDIDATE.format(prompt=PROMPT), "utf-8")
    reference, candidate, injected = (str(folder / name) for name in ("reference", "candidate", "candidate_injected"))
    source = f"py:{folder / 'candidate.py'}:candidate"
    if tensordiff("capture", f"hf:{folder / 'model'}", "-o", reference, "--prompt", PROMPT, "--force"):
        return 2
    if tensordiff("capture", source, "-o", candidate, "--force"):
        return 2
    if sys.stdin.isatty() and sys.stdout.isatty():
        return 0 if tensordiff(reference, candidate) in (0, 1) else 2
    if tensordiff("capture", source, "-o", injected, "--inject", reference, "--force"):
        return 2
    found = tensordiff("compare", reference, candidate, "--injected", injected, "--faults")
    return 0 if found == 1 else 2


if __name__ == "__main__":
    sys.exit(main())
