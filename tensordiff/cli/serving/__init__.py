"""The app in a browser: access control (``guard``), the page and its routes (``server``), its processes (``visitor``).

The browser's side, a terminal in a page, comes from textual-serve; so does the protocol between the app and the
browser.
"""
