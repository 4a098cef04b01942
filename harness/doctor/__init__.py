"""What an engine can do, found out by asking it: the turns that are asked, and what their answers show."""
