"""Packed batches, and the CPU kernels that run on them: attention, linear layers, dropout."""
