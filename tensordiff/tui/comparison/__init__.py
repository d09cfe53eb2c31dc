"""The main screen: two dumps side by side, and the session behind it."""
