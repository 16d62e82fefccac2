"""Other ways to compute on what stays private, measured beside three-party computation."""
