"""What both products stand on."""
