"""What kind of bug a differing parameter shows: ``catalogue`` lists the kinds, proven on values or not said."""
