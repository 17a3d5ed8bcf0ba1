"""A language model of a few hundred kilobytes with random weights, in the GGUF format (version 3).

It knows a handful of words and strings them together: enough for a server to load and stream.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

WORDS = ["▁the", "▁queue", "▁waits", "▁model", "▁thinks", "▁naïve", "▁😀", ",", "."]
WIDTH, INNER, HEADS, CONTEXT = 32, 64, 2, 512
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
UINT32, INT32, FLOAT32, STRING, ARRAY = 4, 5, 6, 8, 9

SPECIAL = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
TOKENS = [*SPECIAL, *((f"<0x{n:02X}>", BYTE) for n in range(256)), *((w, NORMAL) for w in WORDS)]
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def write_tiny_model(path: Path, seed: int = 7) -> None:
    """Write the model to `path`; the same seed gives the same one."""
    chance = random.Random(seed)
    tensors = {name: _weights(chance, name, shape) for name, shape in _shapes().items()}
    metadata = _metadata()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    head += b"".join(_string(key) + _value(kind, value) for key, (kind, value) in metadata.items())
    offset = 0
    for name, shape in _shapes().items():
        head += _string(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape, 0, offset)
        offset += _padded(len(tensors[name]))
    blobs = (blob.ljust(_padded(len(blob)), b"\0") for blob in tensors.values())
    path.write_bytes(head.ljust(_padded(len(head)), b"\0") + b"".join(blobs))


def _shapes() -> dict[str, tuple[int, ...]]:
    square, words = (WIDTH, WIDTH), (WIDTH, len(TOKENS))
    return {
        "token_embd.weight": words,
        "output_norm.weight": (WIDTH,),
        "output.weight": words,
        "blk.0.attn_norm.weight": (WIDTH,),
        "blk.0.attn_q.weight": square,
        "blk.0.attn_k.weight": square,
        "blk.0.attn_v.weight": square,
        "blk.0.attn_output.weight": square,
        "blk.0.ffn_norm.weight": (WIDTH,),
        "blk.0.ffn_gate.weight": (WIDTH, INNER),
        "blk.0.ffn_up.weight": (WIDTH, INNER),
        "blk.0.ffn_down.weight": (INNER, WIDTH),
    }


def _weights(chance: random.Random, name: str, shape: tuple[int, ...]) -> bytes:
    if len(shape) == 1:
        return struct.pack(f"<{shape[0]}f", *[1.0] * shape[0])
    values = [chance.gauss(0, 1) for _ in range(shape[0] * shape[1])]
    if name == "output.weight":
        # Only words can be the likeliest token: no row for a special one or a single byte.
        silent = (len(TOKENS) - len(WORDS)) * WIDTH
        values[:silent] = [0.0] * silent
    return struct.pack(f"<{len(values)}f", *values)


def _metadata() -> dict[str, tuple[int, Any]]:
    numbers = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": 1,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS,
        "rope.dimension_count": WIDTH // HEADS,
    }
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return {
        "general.architecture": (STRING, "llama"),
        "general.name": (STRING, "tiny"),
        **{f"llama.{name}": (UINT32, number) for name, number in numbers.items()},
        "llama.attention.layer_norm_rms_epsilon": (FLOAT32, 1e-5),
        "tokenizer.ggml.model": (STRING, "llama"),
        "tokenizer.ggml.tokens": (ARRAY, (STRING, [token for token, _ in TOKENS])),
        "tokenizer.ggml.scores": (ARRAY, (FLOAT32, [-float(n) for n in range(len(TOKENS))])),
        "tokenizer.ggml.token_type": (ARRAY, (INT32, [kind for _, kind in TOKENS])),
        **{f"tokenizer.ggml.{name}": (UINT32, number) for name, number in ids.items()},
        "tokenizer.chat_template": (STRING, TEMPLATE),
    }


def _value(kind: int, value: Any) -> bytes:
    return struct.pack("<I", kind) + _plain(kind, value)


def _plain(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return _string(value)
    if kind == ARRAY:
        inner, items = value
        plain = b"".join(_plain(inner, item) for item in items)
        return struct.pack("<IQ", inner, len(items)) + plain
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f"}[kind], value)


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _padded(size: int) -> int:
    """`size` up to the next multiple of 32, GGUF's alignment."""
    return -(-size // 32) * 32
