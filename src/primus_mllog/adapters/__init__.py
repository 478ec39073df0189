"""Frameworks' training loops, told to :class:`primus_mllog.run.MLPerfRun`. Translation only."""
