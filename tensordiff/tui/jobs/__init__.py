"""Running sources from the app: what can be rerun, and the line that shows a run."""
