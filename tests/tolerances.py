"""One tolerance a dtype, for torch.testing.assert_close. A test that misses them has found a bug."""

FLOAT64 = {"rtol": 1e-9, "atol": 1e-10}
FLOAT32 = {"rtol": 1e-5, "atol": 1e-5}
BFLOAT16 = {"rtol": 1e-2, "atol": 1e-2}
"""bfloat16 keeps 8 bits: one rounding is up to 2^-8 = 0.004."""
