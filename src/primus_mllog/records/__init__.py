"""Reading logs. Never imports torch."""
