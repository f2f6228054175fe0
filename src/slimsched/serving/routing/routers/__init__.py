"""One router a file; `registry.py` names them."""
