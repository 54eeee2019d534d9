"""``coevo serve``."""
