"""What rounds of a run are carried out with, whom they ask, and what that may cost."""
