"""What ``import tensordiff`` gives: ``compare``, ``align``, ``bisect``, ``capture`` and ``inject`` as functions.

They drive ``session``, as the command line and the app do, and decide nothing a second time. Nothing here prints.
"""
