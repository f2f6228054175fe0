"""Where simulated requests come from: arrival processes and request traces."""
