"""Kernels of a CUDA device, and memory of the host that it reads. Imported where a loader asks for it."""
