"""Stands for mpi4py where no MPI library can be loaded: one process, which is what DLIO is here."""
