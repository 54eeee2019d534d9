"""Functions that export the viewer's pages and their JSON to files for use without a server."""
