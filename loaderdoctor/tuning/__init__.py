"""Which settings a running training tries next, and which it keeps: plain logic of step times."""
