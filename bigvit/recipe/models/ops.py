"""What a model computes of one image, as plain arithmetic: its parameters, its products, and what
backward needs of it are sums over this. No torch here."""

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

Kind = Literal["embedding", "conv", "linear", "norm", "attention", "activation", "scale"]


class Op(NamedTuple):
    """One operation of a forward pass; with `times`, that many like it."""

    module: str  # that computes it, or the parameter: a star for each number that may stand there
    kind: Kind
    parameters: int  # trained
    macs: int  # multiply-accumulates of products of matrices, convolutions and attention
    kept: int  # elements of its input that backward needs; of norms in float32 or wider, of others
    # in the weights' type. What two operations read is counted with the first
    times: int = 1
    shape: tuple[int, int, int] | None = None  # of a matrix product: rows, inputs, outputs


def repeat(times: int, ops: Iterable[Op]) -> Iterator[Op]:
    """The operations of so many blocks alike."""
    return (op._replace(times=times * op.times) for op in ops)


def embedding(parameter: str, numbers: int) -> Op:
    """Learned numbers that are added to tokens, or join them."""
    return Op(parameter, "embedding", numbers, 0, 0)


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


def norm(module: str, tokens: int, dim: int) -> Op:
    """LayerNorm, or BatchNorm over as many cells."""
    return Op(module, "norm", 2 * dim, 0, tokens * dim)


def scale(module: str, parameters: int, kept: int) -> Op:
    """Learned factors of a residual branch."""
    return Op(module, "scale", parameters, 0, kept)


def attention(module: str, queries: int, keys: int, dim: int, *, window: int = 0) -> Op:
    """Attention of all heads, each query to all keys or to a window's; its map is not kept."""
    return Op(
        module, "attention", 0, 2 * queries * (window or keys) * dim, (queries + 2 * keys) * dim
    )


def attention_branch(
    before: str, module: str, tokens: int, dim: int, qkv_bias: bool = True
) -> Iterator[Op]:
    """A LayerNorm and the self-attention of a transformer block."""
    yield norm(before, tokens, dim)
    yield linear(f"{module}.qkv", tokens, dim, 3 * dim, bias=qkv_bias)
    yield attention(module, tokens, tokens, dim)
    yield linear(f"{module}.proj", tokens, dim, dim)


def mlp_branch(before: str, module: str, tokens: int, dim: int, hidden: int) -> Iterator[Op]:
    """A LayerNorm and the MLP of a transformer block."""
    yield norm(before, tokens, dim)
    yield linear(f"{module}.fc1", tokens, dim, hidden)
    yield Op(module, "activation", 0, 0, tokens * hidden)
    yield linear(f"{module}.fc2", tokens, hidden, dim)
