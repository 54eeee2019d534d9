"""A method's hooks around episodes: guidance before them, studies and memories after them."""
