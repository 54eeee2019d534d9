"""Export of tasks as JSON lines and as a Parquet table, with a description in JSON-LD."""
