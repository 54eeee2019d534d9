"""``coevo play``: play an episode by hand, in the terminal or in the browser."""
