"""loaderdoctor: says where each millisecond of a training step goes, and proves it."""

__version__ = "0.1.0"
