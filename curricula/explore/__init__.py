"""Rounds of evolution: who goes out, and what becomes of what is found."""
