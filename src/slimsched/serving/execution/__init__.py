"""Who carries commands out: the simulated cluster now, real servers later."""
