"""Run the sides of a comparison again, and decide what of a dump's manifest may be run."""
