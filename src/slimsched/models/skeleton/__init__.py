"""A small elastic model that `slim model new` copies as a starting point."""
