"""Stands for TensorFlow, which DLIO's profiler imports even where PyTorch runs."""
