"""Dumps that other people's tools leave: one module each."""
