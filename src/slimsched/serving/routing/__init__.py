"""Global routing: decides which server runs a request, at which width, and in which group. Pure."""
