"""The only code that imports torch, transformers, max or onnxruntime.

Each kind of source is a module with ``run(job, tell) -> Done``. It runs in a process of its own, see ``runner``
for the parent's side and ``start`` for the child's. Nothing outside of this folder imports from it, but the
library's ``tensordiff.capture``, which runs where the caller has torch already.
"""
