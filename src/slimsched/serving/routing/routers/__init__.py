"""The routers; `registry.py` names them."""
