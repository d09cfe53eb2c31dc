"""Comparing sources while they run, without a dump of either."""
