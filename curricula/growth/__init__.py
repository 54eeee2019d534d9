"""Growth rules, which decide when a round explores and which contexts it starts from."""
