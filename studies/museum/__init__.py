"""A museum of real bugs of real ports, rebuilt on tiny random models, each with the reports that describe it.

The other study plants one kind of bug after another where it fits; here every bug is one that people met, in the
architecture they met it in. Each is first shown to be fair without tensordiff: what it makes wrong must be clear of
what a clean port shows in the same place. ``python -m studies museum`` runs it, together with clean ports of many
architectures, which must have no culprit.
"""
