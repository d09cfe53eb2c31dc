"""``mlx:`` sources: models of mlx-lm."""
