"""The paths by which users import what is for GPUs: `pebblesim.gpu.torch`, `.transformers`, `.diffusers`.

The code is in `pebblesim.kernels`, `.advice`, `.operator` and `.measuring`.
"""
