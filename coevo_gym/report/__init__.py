"""Run report: one self-contained HTML file, and a standalone picture."""
