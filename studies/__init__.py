"""Studies: how often the verdicts are right, and where healthy runs stand, measured on tiny models.

These are neither tests (they take minutes, and their answer is a table) nor benchmarks (no clock is read), and they
need torch, which the package itself must not import; so they stand beside it. ``python -m studies`` plants bugs into
tiny models of several architectures, rebuilds those that people reported (``museum``), and writes the tables of
``docs/verdicts.md``; ``make test`` runs a small fixed part of the same.
"""
