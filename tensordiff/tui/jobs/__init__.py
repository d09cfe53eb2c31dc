"""Runs of sources from the app: what can be run again, and the line that shows a run."""
