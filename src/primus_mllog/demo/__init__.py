"""The demo: a small but real Megatron-Core training on the CPU that writes a checked MLPerf log."""
