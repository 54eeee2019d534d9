"""``coevo new``, and the skeletons that it writes."""
