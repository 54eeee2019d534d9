"""Asking models within bounds: recorded answers, budgets, and inquiries with a schema."""
