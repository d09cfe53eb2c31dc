"""The screen of one layer, and its views."""
