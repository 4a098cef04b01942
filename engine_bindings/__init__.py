"""What both sides of a process boundary agree on, and the engines that can be started."""
