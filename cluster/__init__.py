"""Workers, their channels, certificates and jobs."""
