"""Work spread over machines: who gets what next, what the machines are, and Ray, which runs it."""
