"""The rules of the house, read off the source."""
