"""The suite: one file per room of the house, under the same name."""
