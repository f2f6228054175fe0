"""The local decision: which batch a device runs and what it loads (Algorithm 1). Pure."""
