"""The command `slim`: reads options, calls the library, and prints what comes back."""
