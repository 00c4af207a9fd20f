"""What is on disk: every path, every record schema, and how files are written. The only interface between branches."""
