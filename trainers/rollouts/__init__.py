"""What one step of the loop learns from: its episodes, in lock step or as a stream."""
