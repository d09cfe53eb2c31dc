"""The app in a browser: who may come in (``guard``), the page and its routes (``server``), its processes (``visitor``).

The browser's side, the terminal in a page, is textual-serve's; so is the way the app and a browser talk.
"""
