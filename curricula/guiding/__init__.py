"""What a method does around episodes: guidance before them, studies and memories after them."""
