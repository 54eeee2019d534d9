"""Who acts: scripted, random and trainable agents."""
