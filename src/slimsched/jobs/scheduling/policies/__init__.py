"""The policies: one file each; `execution/policies.py` has the table of their names."""
