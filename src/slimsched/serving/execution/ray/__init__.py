"""Live servers on Ray: Ray places and restarts them, gateways talk to them directly."""
