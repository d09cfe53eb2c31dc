"""``py:`` sources: a user's own function that makes a torch model and its inputs."""
