"""A rules file with everything in it, as text and as what it says."""

from __future__ import annotations

from tensordiff.align.rules.file import MapRule, RulesFile, ToleranceRule, ViewRule
from tensordiff.align.rules.rule import Rule

QKV = MapRule("cat(layers.{i}.q_proj, layers.{i}.k_proj)", "layers.{i}.qkv_proj")
EVERYTHING = """\
# Rules of a port
presets = ["hf", "max"]

[[rule]]                       # tried in order
side = "candidate"             # reference, candidate or both
match = '^model\\.layers\\.layers\\.'
replace = 'layers.'

# what vLLM fuses
[[map]]
reference = "cat(layers.{i}.q_proj, layers.{i}.k_proj)"
candidate = "layers.{i}.qkv_proj"

[[view]]
match = '(^|\\.)lm_head$'
candidate = "last_token | squeeze 0"

# a loose paragraph

[[rule]]
match = "act"
replace = "act_fn"
module_class = "^SiLU"
on = false

[[tolerance]]                  # first match wins
match = '\\.experts\\.'
rel_l2 = 3e-2
max_abs = 1
"""
READ = RulesFile(
    rules=(
        Rule("candidate", r"^model\.layers\.layers\.", "layers."),
        Rule("both", "act", "act_fn", on=False, module_class="^SiLU"),
    ),
    maps=(QKV,),
    views=(ViewRule(r"(^|\.)lm_head$", candidate="last_token | squeeze 0"),),
    tolerances=(ToleranceRule(r"\.experts\.", rel_l2=3e-2, max_abs=1.0),),
    presets=("hf", "max"),
)
