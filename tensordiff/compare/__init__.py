"""How far apart."""
