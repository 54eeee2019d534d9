"""The viewer's data: runs and evaluations as JSON, served or exported."""
