"""QwT compensation: reserved, nothing is here yet."""
