"""Describes what is on disk: every path, every record schema, how files are written.

The only interface between branches.
"""
