"""The table of layers, its summary, filter and plot."""
