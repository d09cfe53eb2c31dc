"""Rules: how names are made equal, and entries paired, viewed and judged, and the TOML files that say so.

``rule`` rewrites names, ``tables`` holds the other kinds of rules and reads each from a table of a file, ``file`` reads
and writes whole files (``writing`` changes their text, ``toml_text`` finds positions in it), and ``rule_book`` is the
editor's state.
"""
