"""Stored episodes as data: rows, chats and files for other programs."""
