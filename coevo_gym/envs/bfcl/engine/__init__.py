"""Code that installs BFCL's official backends, calls their functions and runs conversations."""
