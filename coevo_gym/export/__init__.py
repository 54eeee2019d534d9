"""Tasks as files for others: whole as JSON lines, as a Parquet table, and described in JSON-LD."""
