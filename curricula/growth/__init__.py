"""Growth rules, which decide when to start a round and which contexts it explores."""
