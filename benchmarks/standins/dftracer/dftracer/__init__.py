"""Stands for pydftracer 1: version 2 has no `dftracer.logger`, which DLIO 2.0.0 imports."""
