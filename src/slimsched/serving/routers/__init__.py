"""Routers: which plan each request takes, and on which server it runs."""
