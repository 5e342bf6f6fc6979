"""Which settings are best: trials over the axes, in shuffled rounds, ranked by estimate."""
