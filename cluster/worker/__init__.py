"""One party's long-running process, by what its parts do; `server` puts them together."""
