"""Questions that others write and read: VNN-LIB 1 and 2, Marabou's property files.

A file becomes a `Document`: declared tensors, exact bounds of the inputs, and assertions over them.
"""
