"""From cells to the numbers of views."""
