"""Ready-made kernels, written in the language and called like functions."""

from .attention.backward.call import attention_backward
from .attention.block_mask import BlockMask, block_mask
from .attention.call import attention
from .grouped.call import grouped_matmul
from .matmul.call import matmul
from .matmul.tune import tune

__all__ = ["BlockMask", "attention", "attention_backward", "block_mask", "grouped_matmul", "matmul", "tune"]
