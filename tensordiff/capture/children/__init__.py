"""The only code that imports torch, transformers, max or onnxruntime.

Each kind of source is a module with ``run(job, tell) -> Done``, and with ``keep`` where something may stay loaded for
the next job, see ``staying``. It runs in a process of its own, see ``runner`` and ``child`` for the parent's side and
``start`` for the child's. Nothing outside of this folder imports from it, but the
library's ``tensordiff.capture``, which runs where the caller has torch already.
"""
