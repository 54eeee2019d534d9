"""Model queries with budgets, recorded answers and schema validation."""
