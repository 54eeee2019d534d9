"""What to practise next: signals, pool, groups, gates, samplers."""
