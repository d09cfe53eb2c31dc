"""The functions that ``import tensordiff`` offers: ``compare``, ``align``, ``bisect``, ``capture`` and ``inject``.

They use ``session``, as the command line and the app do, and repeat none of its decisions. Nothing here prints.
"""
