"""What sparse attention refuses."""

import jax.numpy as jnp
import pytest

from pallas_kernels.sparse_attention import api
from pallas_kernels.sparse_attention.keys import PagedKeys


def arguments(dim=64, dtype=jnp.bfloat16, pool_dtype=jnp.bfloat16):
    part = PagedKeys(
        jnp.zeros((3, 4, dim), pool_dtype),
        jnp.zeros((2, 1), jnp.int32),
        None,
        jnp.ones((2, 4), bool),
    )
    return jnp.zeros((2, 8, dim), dtype), [part], jnp.zeros(8)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"dtype": jnp.float32}, r"sparse_attention got 'pallas', but q is float32"),
        ({"pool_dtype": jnp.float32}, r"but parts\[0\].pool is float32"),
        ({"dim": 96}, "but heads are 96 wide"),
    ],
)
def test_pallas_refuses_what_it_does_not_take(changed, reason):
    with pytest.raises(ValueError, match=reason):
        api.sparse_attention(*arguments(**changed), 1.0, implementation="pallas")
    assert api.sparse_attention(*arguments(**changed), 1.0).shape[:2] == (2, 8)


def test_shapes_that_do_not_fit_are_errors_that_name_them():
    q, parts, sink = arguments()
    with pytest.raises(ValueError, match="parts: got none"):
        api.sparse_attention(q, [], sink, 1.0)
    with pytest.raises(ValueError, match=r"sink: got \[3\], expected one for each of 8 heads"):
        api.sparse_attention(q, parts, sink[:3], 1.0)
    with pytest.raises(ValueError, match=r"parts\[0\].pool: got .*, expected \[P, E, 32\]"):
        api.sparse_attention(q[..., :32], parts, sink, 1.0)
    with pytest.raises(ValueError, match=r"parts\[0\].visible: got \[2, 4\], expected \[1, 4\]"):
        api.sparse_attention(q[:1], parts, sink, 1.0)
