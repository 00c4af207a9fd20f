"""Looks at a running job from outside: its ranks' processes, and where each spends its time."""
