"""Looks at this machine and tells what will work on it. Changes nothing."""
