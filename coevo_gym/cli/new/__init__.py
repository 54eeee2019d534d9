"""``coevo new`` and its templates."""
