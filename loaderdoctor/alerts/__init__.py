"""What is told of a run while it goes on: change points, recurring stalls, growth. No torch."""
