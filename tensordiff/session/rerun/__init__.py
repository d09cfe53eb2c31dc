"""Running the sides of a comparison again, and what may be run again of what a dump names."""
