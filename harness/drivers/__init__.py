"""Carries bytes to and from engines: processes, pipes, and the two stdio sessions."""
