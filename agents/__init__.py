"""Scripted, random and trainable agents."""
