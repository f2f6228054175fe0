"""Who carries out commands: the simulated cluster, live servers, servers on Ray."""
