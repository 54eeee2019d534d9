"""Export of the viewer's pages and their JSON to files that open without a server."""
