"""Dumps that other people's tools write: one module each."""
