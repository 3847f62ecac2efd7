"""The C interface of cpp/headrace.cpp through ctypes, which frees the GIL while it computes."""

import ctypes
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import torch

from headrace.models.batch import BLOCK_TOKENS
from headrace.models.native.build import NativeUnavailableError, build_library


class Weight(IntEnum):
    """Which weight; the same numbers as in cpp/model.h."""

    EMBEDDING = 0
    HEAD = 1
    FINAL_NORM = 2
    COS = 3
    SIN = 4
    QKV = 5
    OUT = 6
    GATE_UP = 7
    DOWN = 8
    INPUT_NORM = 9
    POST_NORM = 10
    QKV_BIAS = 11
    Q_NORM = 12
    K_NORM = 13


_MATRICES = (Weight.EMBEDDING, Weight.HEAD, Weight.QKV, Weight.OUT, Weight.GATE_UP, Weight.DOWN)


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """The sizes and factors of a decoder of the Llama kind."""

    dtype: torch.dtype
    num_layers: int
    hidden: int
    intermediate: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    max_positions: int
    norm_eps: float
    attention_scale: float
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    int8_weights: bool = False

    @property
    def block_bytes(self) -> int:
        """Memory of a KV block, all layers."""
        values = 2 * self.num_layers * self.num_kv_heads * self.head_dim
        return values * BLOCK_TOKENS * self.dtype.itemsize


_SIZES = (
    "num_layers",
    "hidden",
    "intermediate",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "vocab",
    "max_positions",
)
_FACTORS = ("norm_eps", "attention_scale", "embedding_scale", "residual_scale", "logit_scale")


class _Config(ctypes.Structure):
    """`hr_config` in cpp/model.h."""

    _fields_ = (
        ("is_bf16", ctypes.c_int32),
        ("is_int8", ctypes.c_int32),
        ("num_threads", ctypes.c_int32),
        *((name, ctypes.c_int32) for name in _SIZES),
        *((name, ctypes.c_float) for name in _FACTORS),
    )


class StepRow(ctypes.Structure):
    """One row of a step; see `hr_row` in cpp/model.h."""

    _fields_ = (
        ("blocks", ctypes.c_void_p),
        ("token_ids", ctypes.c_void_p),
        ("start", ctypes.c_int32),
        ("num_tokens", ctypes.c_int32),
        ("wanted", ctypes.c_int32),
    )


class Library:
    """The compiled library, loaded.

    Raises: NativeUnavailableError.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._c = _load(path) if path is not None else _load_compiled()
        c, pointer, i32 = self._c, ctypes.c_void_p, ctypes.c_int32
        c.hr_kernels.restype, c.hr_kernels.argtypes = ctypes.c_char_p, [i32]
        c.hr_create.restype, c.hr_create.argtypes = pointer, [ctypes.POINTER(_Config)]
        c.hr_destroy.restype, c.hr_destroy.argtypes = None, [pointer]
        c.hr_allocate.restype, c.hr_allocate.argtypes = i32, [pointer, i32, i32, i32]
        c.hr_block.restype, c.hr_block.argtypes = pointer, [pointer, i32]
        c.hr_set_rows.restype, c.hr_set_rows.argtypes = None, [pointer, i32, i32, i32, i32, pointer]
        c.hr_step.restype = None
        c.hr_step.argtypes = [pointer, pointer, i32, pointer, pointer, pointer]

    def kernels(self, dtype: torch.dtype) -> str:
        """The instructions that multiply: results are equal bit by bit where this is."""
        return str(self._c.hr_kernels(dtype == torch.bfloat16).decode())

    @property
    def functions(self) -> ctypes.CDLL:
        """The C functions, with their types."""
        return self._c


def _load_compiled() -> ctypes.CDLL:
    path = build_library()
    try:
        return _load(path)
    except NativeUnavailableError:  # a disk was full, or a machine went down
        return _load(build_library(damaged=path))


def _load(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"the compiled library cannot be loaded: {error}") from error


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 itself, and the library can be had."""
    try:
        return Library().kernels(torch.bfloat16) in ("amx", "avx512bf16")
    except NativeUnavailableError:
        return False


class NativeDecoder:
    """A decoder in native memory: weights, then a pool of KV blocks, then steps.

    One thread calls it at a time. Nothing is checked on the other side: wrong ids are the caller's
    fault and would write anywhere.
    """

    def __init__(self, library: Library, shape: DecoderShape, *, num_threads: int) -> None:
        self.shape, self.kernels = shape, library.kernels(shape.dtype)
        self.probe = ""  # what a few tokens give, bit by bit; set when that was checked
        self._c = library.functions
        config = _Config(
            is_bf16=int(shape.dtype == torch.bfloat16),
            is_int8=int(shape.int8_weights),
            num_threads=num_threads,
            **{name: getattr(shape, name) for name in (*_SIZES, *_FACTORS)},
        )
        self._handle: int | None = self._c.hr_create(ctypes.byref(config))
        if self._handle is None:
            raise NativeUnavailableError("the system gives no memory for the weights, or no tiles")

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Give the memory back; the decoder cannot be used afterwards."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle is not None:
            self._c.hr_destroy(handle)

    def set_weight(
        self, which: Weight, data: torch.Tensor, *, layer: int = 0, first_row: int = 0
    ) -> None:
        """Copy a weight. Shapes: matrices (rows, inputs) in the decoder's dtype, all else flat
        float32; `first_row` is where it goes in a matrix that consists of several.
        """
        is_matrix = which in _MATRICES
        dtype = self.shape.dtype if is_matrix else torch.float32
        data = data.detach().to("cpu", dtype).contiguous()
        rows = data.shape[0] if is_matrix else data.numel()
        self._c.hr_set_rows(self._handle, which, layer, first_row, rows, data.data_ptr())

    def allocate(self, *, num_blocks: int, max_tokens: int, max_rows: int) -> None:
        """Take the memory for KV blocks (zeroed, in place of what was there) and for steps of up to
        `max_tokens`, of which `max_rows` want something.

        Raises: MemoryError.
        """
        if self._c.hr_allocate(self._handle, num_blocks, max_tokens, max_rows) != 0:
            raise MemoryError(f"no memory for {num_blocks * self.shape.block_bytes >> 20} MB of KV")

    def block(self, block_id: int) -> memoryview:
        """The memory of a block."""
        address = self._c.hr_block(self._handle, block_id)
        return memoryview((ctypes.c_char * self.shape.block_bytes).from_address(address)).cast("B")

    def step(self, rows: ctypes.Array[StepRow], greedy: int, finite: int, logits: int) -> None:
        """Run a step; the last three are addresses of int32, uint8 and float32 arrays for the rows
        that want something.
        """
        self._c.hr_step(self._handle, ctypes.addressof(rows), len(rows), greedy, finite, logits)
