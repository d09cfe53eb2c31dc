"""The exhibits, by the part of a model in which they were found."""
