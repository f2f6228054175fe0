"""Servers on Ray: Ray places, supervises and restarts them; gateways talk to them directly."""
