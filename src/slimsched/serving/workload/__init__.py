"""Where demand comes from: arrival processes, request traces, job traces."""
