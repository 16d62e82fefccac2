"""One party's long-running process, one module per part; `server` connects them."""
