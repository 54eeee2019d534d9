"""Adapters that let third-party trainers train on a curriculum session's tasks."""
