"""Audits that show which tasks a run trains and validates on, and how these overlap."""
