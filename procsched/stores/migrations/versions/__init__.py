"""One module for each revision, named and numbered in order."""
