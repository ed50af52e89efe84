"""The commands, one file each; everything slow is imported when a command runs."""
