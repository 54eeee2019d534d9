"""Functions that find, make, verify and export panels, and look up published results."""
