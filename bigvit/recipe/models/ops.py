"""What a model computes of one image, as plain arithmetic: its parameters, its products, and what
backward needs of it are sums over this. No torch here."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal[
    "embedding",
    "conv",
    "linear",
    "norm",
    "batch norm",  # which has statistics, too
    "affine",
    "attention",
    "activation",
    "scale",
    "stream",  # what a residual branch reads: kept, too, where the branch is recomputed
    "shared",  # the same of a branch that reads what another reads: kept where samples are skipped
]


class Op(NamedTuple):
    """One operation of a forward pass; with `times`, that many like it."""

    module: str  # that computes it, or the parameter: a star for each number that may stand there
    kind: Kind
    parameters: int  # trained
    macs: int  # multiply-accumulates of products of matrices, convolutions and attention
    kept: int  # elements that backward needs of it in the weights' type. What two operations read
    # is counted with the first
    times: int = 1
    # of a matrix product: rows, inputs, outputs; what has one is decayed
    shape: tuple[int, int, int] | None = None
    wide: int = 0  # elements that backward needs of it in float32 or wider
    block: int | None = None  # the first of the `times` blocks that it is computed in, from 0
    branch: int = 0  # of the block's residual branches, which drop samples one by one
    rows: int = 1  # the first dimension of an embedding


def repeat(times: int, ops: Iterable[Op], first: int = 0) -> Iterator[Op]:
    """The operations of so many blocks alike, from the first of them on."""
    return (op._replace(times=times, block=first) for op in ops)


def in_branch(branch: int, *ops: Iterable[Op]) -> Iterator[Op]:
    """The operations of one of a block's residual branches."""
    return (op._replace(branch=branch) for some in ops for op in some)


def embedding(parameter: str, numbers: int, *, decayed: bool = False, rows: int = 1) -> Op:
    """Learned numbers that are added to tokens, or join them."""
    shape = (0, numbers, 1) if decayed else None
    return Op(parameter, "embedding", numbers, 0, 0, shape=shape, rows=rows)


def linear(
    module: str, tokens: int, inputs: int, outputs: int, *, bias: bool = True, keeps: bool = True
) -> Op:
    """A linear layer on every token."""
    parameters, macs = (inputs + bias) * outputs, tokens * inputs * outputs
    kept, shape = tokens * inputs if keeps else 0, (tokens, inputs, outputs)
    return Op(module, "linear", parameters, macs, kept, shape=shape)


def conv(
    module: str, cells: int, inputs: int, outputs: int, kernel: int, kept: int, bias: bool = False
) -> Op:
    """A convolution that makes so many cells, each of `inputs` channels below it."""
    columns = inputs * kernel**2
    parameters, macs = (columns + bias) * outputs, cells * columns * outputs
    return Op(module, "conv", parameters, macs, kept, shape=(cells, columns, outputs))


def norm(module: str, tokens: int, dim: int, *, keeps: bool = True) -> Op:
    """LayerNorm in float32 or wider; a token's mean and deviation are kept, too."""
    return Op(module, "norm", 2 * dim, 0, 0, wide=tokens * (keeps * dim + 2))


def affine(module: str, tokens: int, dim: int, *, keeps: bool = True) -> Op:
    """A learned factor and shift a channel, in float32 or wider."""
    return Op(module, "affine", 2 * dim, 0, 0, wide=keeps * tokens * dim)


def batch_norm(module: str, cells: int, dim: int) -> Op:
    """BatchNorm in float32 or wider."""
    return Op(module, "batch norm", 2 * dim, 0, 0, wide=cells * dim)


def stream(module: str, tokens: int, dim: int, *, shared: bool = False) -> Op:
    """The residual stream as a branch reads it, float32 or wider."""
    return Op(module, "shared" if shared else "stream", 0, 0, 0, wide=tokens * dim)


def scale(module: str, parameters: int, kept: int) -> Op:
    """Learned factors of a residual branch."""
    return Op(module, "scale", parameters, 0, kept)


def attention(module: str, queries: int, keys: int, dim: int, heads: int) -> Op:
    """Attention of all heads, each query to all keys. A fused kernel keeps queries, keys, values
    and a number for each head's query, and no map."""
    kept, wide = (queries + 2 * keys) * dim, queries * heads
    return Op(module, "attention", 0, 2 * queries * keys * dim, kept, wide=wide)


def attention_branch(
    before: str,
    module: str,
    tokens: int,
    dim: int,
    heads: int,
    *,
    qkv_bias: bool = True,
    shared: bool = False,
) -> Iterator[Op]:
    """The self-attention of a transformer block, with the LayerNorm before it."""
    yield stream(before, tokens, dim, shared=shared)
    yield norm(before, tokens, dim, keeps=False)
    yield linear(f"{module}.qkv", tokens, dim, 3 * dim, bias=qkv_bias)
    yield attention(module, tokens, tokens, dim, heads)
    yield linear(f"{module}.proj", tokens, dim, dim)


def mlp_branch(
    before: str, module: str, tokens: int, dim: int, hidden: int, *, shared: bool = False
) -> Iterator[Op]:
    """The MLP of a transformer block, with the LayerNorm before it."""
    yield stream(before, tokens, dim, shared=shared)
    yield norm(before, tokens, dim, keeps=False)
    yield linear(f"{module}.fc1", tokens, dim, hidden)
    yield Op(module, "activation", 0, 0, tokens * hidden)
    yield linear(f"{module}.fc2", tokens, hidden, dim)
