"""``max:`` sources: models run by Modular MAX."""
