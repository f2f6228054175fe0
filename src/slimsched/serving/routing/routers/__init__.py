"""The routers, one file each; `registry.py` has the table of their names."""
