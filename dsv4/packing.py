"""The byte layouts of quantised weights and their constants; needs neither NumPy nor jax.

fp8     e4m3 values [out, in], one scale per block of r x c: W[i, j] = v[i, j] * s[i // r, j // c]
mxfp4   bytes [out, in / 2] of two e2m1, the low nibble is the even column; a scale per 32 columns
nvfp4   the same with an e4m3 scale per 16 columns, times one float32 scale for the whole weight

Block scales of fp8 and mxfp4 are e8m0 (byte b is 2^(b - 127), 255 is NaN), e4m3 or float. Source:
reference 4.1, 4.2.
"""

from typing import Literal

PackedFormat = Literal["fp8", "mxfp4", "nvfp4"]

# Magnitudes of the lower three bits of an e2m1; the fourth is the sign.
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E4M3_MAX = 448.0

# Rows and columns per scale; fp8's is the usual one.
FP8_BLOCK = (128, 128)
MXFP4_BLOCK = (1, 32)
NVFP4_BLOCK = (1, 16)
