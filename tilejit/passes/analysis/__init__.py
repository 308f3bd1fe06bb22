"""What passes ask of a graph. Nothing here changes one."""
