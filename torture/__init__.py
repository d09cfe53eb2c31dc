"""A campaign against tensordiff: ``make torture``, twenty minutes of damage, all of it seeded.

Each part attacks in its own way, case by case until its share of the time is over. A case is made of the seed, the
part and a number alone, so that what it found can be found again: ``python -m torture --only PART --seed N --case K``.
Signals and visitors depend on timing as well; there the same case is the same attack, not the same moment.
"""
