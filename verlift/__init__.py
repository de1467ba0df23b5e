"""The command line of verlift."""
