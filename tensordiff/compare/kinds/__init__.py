"""The tests for each kind of error; ``tensordiff.compare.hint`` decides in which order they are asked."""
