"""What people do with the tasks of a run: read how one came about, let it in, bring their own."""
