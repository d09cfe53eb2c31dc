"""What kind of bug a differing parameter shows: ``catalogue`` lists the kinds, proven by values or not reported."""
