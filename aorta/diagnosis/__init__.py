"""Thresholds, rules and the verdict."""
