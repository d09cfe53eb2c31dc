"""The devices of a torch run: what they are, flags that change their numbers, weights that are offloaded."""
