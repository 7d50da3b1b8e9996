"""Per-operator, per-block sensitivity tools: reserved, nothing is here yet."""
