"""Task export as JSON Lines and Parquet, with a JSON-LD description."""
