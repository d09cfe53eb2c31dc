"""The terminal application. It only shows what the session knows: it decides nothing and never blocks."""
