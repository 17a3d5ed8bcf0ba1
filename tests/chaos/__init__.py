"""Harm done to real processes, and what must hold all the same."""
