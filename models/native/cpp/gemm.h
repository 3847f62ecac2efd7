// Y = X W^T over packed weights. Each output is one sum over k in rising order, computed with the
// same instructions for any number of rows, so a row's result does not depend on its batch.
//
// Activations lie in tiles of 16 rows x 32 k, so that a tile is read as one run of memory.
// A packed panel pair holds 32 outputs: for each 32 k of bfloat16, two tiles of (16 pairs of k) x
// (16 outputs) x 2; for each k of float32, two times 16 outputs. It is read from front to back.
#pragma once

#include <algorithm>

#include "vec.h"

namespace hr {

constexpr int kTile = 16;       // outputs of a panel, rows of a tile
constexpr int kPanelPair = 32;  // outputs that are computed together
constexpr int kDepth = 32;      // k is padded to a multiple of this

inline int round_up(int value, int multiple) { return (value + multiple - 1) / multiple * multiple; }

inline size_t packed_elements(int num_outputs, int k) {
  return static_cast<size_t>(round_up(num_outputs, kPanelPair)) * round_up(k, kDepth);
}

// Where element (output, k) of a panel pair lies within it.
template <class E>
inline size_t packed_offset(int output, int k) {
  const int panel = output / kTile, lane = output % kTile;
  if constexpr (E::kIsBf16)
    return static_cast<size_t>(k / kDepth) * 1024 + panel * 512 + (k % kDepth) / 2 * 32 + lane * 2 +
           k % 2;
  else
    return static_cast<size_t>(k) * kPanelPair + panel * kTile + lane;
}

// Where element (row, k) of the activations lies; `k` values a row.
inline size_t tile_offset(int row, int at, int k) {
  return (static_cast<size_t>(row / kTile) * (k / kDepth) + at / kDepth) * (kTile * kDepth) +
         row % kTile * kDepth + at % kDepth;
}

// Copies one row of a weight (outputs x k, row-major) into place; `packed` begins zeroed.
template <class E, class To, class From>
void pack_row(To* packed, const From& row, int output, int k) {
  To* pair = packed + static_cast<size_t>(output / kPanelPair) * kPanelPair * round_up(k, kDepth);
  for (int i = 0; i < k; i++) pair[packed_offset<E>(output % kPanelPair, i)] = row(i);
}

// Where the kernels read a panel pair: `at(depth)` is its part for k = 32 * depth and on.
template <class E>
struct Plain {
  const typename E::T* pair;

  inline const typename E::T* at(int depth) const { return pair + depth * kPanelPair * kDepth; }
  inline const typename E::T* next(int k) const { return pair + kPanelPair * k; }
};

// Part `depth` of a pair of bytes, as numbers of the model's type, which hold each of them exactly.
template <class E>
inline void widen(const int8_t* pair, int depth, typename E::T* to) {
  constexpr int kSize = kPanelPair * kDepth;
  const int8_t* from = pair + depth * kSize;
  for (int i = 0; i < kSize; i += 4 * kLanes) {
    __builtin_prefetch(from + i + 4096);
    for (int j = i; j < i + 4 * kLanes; j += kLanes)
      E::put(to + j, from_int8(load<c16v>(from + j)));
  }
  written(to);
}

// A pair of bytes, widened a few parts at a time: they do not leave the nearest cache.
template <class E>
struct Widened {
  static constexpr int kParts = 4;
  const int8_t* pair;
  alignas(64) mutable typename E::T parts[kParts * kPanelPair * kDepth];

  inline const typename E::T* at(int depth) const {
    typename E::T* to = parts + depth % kParts * kPanelPair * kDepth;
    widen<E>(pair, depth, to);
    return to;
  }
  inline const typename E::T* next(int) const { return parts; }  // it pages in for itself
};

// R rows x 32 outputs in vector registers: acc[r][panel]. `a` points to the first row in its tile.
template <class E, int R>
struct Block {
  f16v acc[R][2];

  inline void clear() {
    for (int r = 0; r < R; r++) acc[r][0] = acc[r][1] = f16v{};
  }

  template <class Source>
  inline void multiply(const typename E::T* a, const Source& pair, int k) {
    for (int depth = 0; depth < k / kDepth; depth++, a += kTile * kDepth) {
      if constexpr (E::kIsBf16)
        multiply_bf16(a, pair.at(depth));
      else
        multiply_f32(a, pair.at(depth));
    }
  }

 private:
  inline void multiply_f32(const float* a, const float* pair) {
    for (int i = 0; i < kDepth; i++, pair += kPanelPair) {
      const f16v b0 = load<f16v>(pair), b1 = load<f16v>(pair + kTile);
      __builtin_prefetch(pair + kAhead);
      __builtin_prefetch(pair + kAhead + kTile);
      for (int r = 0; r < R; r++) {
        const f16v x = splat(a[r * kDepth + i]);
        acc[r][0] += x * b0;
        acc[r][1] += x * b1;
      }
    }
  }

  inline void multiply_bf16(const uint16_t* a, const uint16_t* pair) {
    for (int i = 0; i < kDepth / 2; i++, pair += 2 * kTile) {
      const u16v b0 = load<u16v>(pair), b1 = load<u16v>(pair + 512);
      __builtin_prefetch(pair + kAhead);
      __builtin_prefetch(pair + kAhead + 512);
#if defined(__AVX512BF16__)
      for (int r = 0; r < R; r++) {
        const auto x = (__m512bh)_mm512_set1_epi32(load<int32_t>(a + r * kDepth + 2 * i));
        acc[r][0] = (f16v)_mm512_dpbf16_ps((__m512)acc[r][0], x, (__m512bh)b0);
        acc[r][1] = (f16v)_mm512_dpbf16_ps((__m512)acc[r][1], x, (__m512bh)b1);
      }
#else
      const f16v even0 = (f16v)(b0 << 16), odd0 = (f16v)(b0 & 0xffff0000u);
      const f16v even1 = (f16v)(b1 << 16), odd1 = (f16v)(b1 & 0xffff0000u);
      for (int r = 0; r < R; r++) {
        const uint32_t both = load<uint32_t>(a + r * kDepth + 2 * i);
        const f16v even = (f16v)(u16v{} + (both << 16));
        const f16v odd = (f16v)(u16v{} + (both & 0xffff0000u));
        acc[r][0] += even * even0;
        acc[r][0] += odd * odd0;
        acc[r][1] += even * even1;
        acc[r][1] += odd * odd1;
      }
#endif
    }
  }

  static constexpr int kAhead = 2048 / sizeof(typename E::T);  // elements to prefetch ahead
};

// Divides 16, so that the rows of a block lie in one tile.
#if defined(__AVX512F__)
constexpr int kMaxBlockRows = 8;
#else
constexpr int kMaxBlockRows = 4;
#endif

template <class E, int R, class Source, class Epilogue>
inline void rows_times_pair(const typename E::T* a, int row, int num_rows, const Source& pair,
                            int k, const Epilogue& epilogue) {
  if constexpr (R > 1) {
    if (num_rows < R) return rows_times_pair<E, R - 1>(a, row, num_rows, pair, k, epilogue);
  }
  Block<E, R> block;
  block.clear();
  block.multiply(a + tile_offset(row, 0, k), pair, k);
  for (int r = 0; r < R; r++) {
    alignas(64) float out[kPanelPair];
    store(out, block.acc[r][0]);
    store(out + kTile, block.acc[r][1]);
    epilogue(row + r, out);
  }
}

#if defined(__AMX_BF16__)
// 16 or 32 rows x 32 outputs; `out` has `ldo` floats a row.
// Pages in the next panel pair from memory, some lines at each step of k.
struct Ahead {
  const uint16_t* at;
  int lines;

  inline void step() {
    for (int line = 0; line < lines; line++) _mm_prefetch(at + line * 32, _MM_HINT_T1);
    at += lines * 32;
  }
};

template <bool kTwo, class Source>
inline void tiles_times_pair(const uint16_t* a, const Source& source, int k, float* out, int ldo,
                             Ahead ahead = {nullptr, 0}) {
  const uint16_t* second = a + kTile * k;
  written(a);
  _tile_zero(0);
  _tile_zero(1);
  if (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int depth = 0; depth < k / kDepth; depth++, a += 512, second += 512) {
    const uint16_t* pair = source.at(depth);
    ahead.step();
    _tile_loadd(4, a, 64);
    _tile_loadd(6, pair, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, pair + 512, 64);
    _tile_dpbf16ps(1, 4, 7);
    if (kTwo) {
      _tile_loadd(5, second, 64);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  const int stride = ldo * static_cast<int>(sizeof(float));
  _tile_stored(0, out, stride);
  _tile_stored(1, out + kTile, stride);
  if (kTwo) {
    _tile_stored(2, out + kTile * ldo, stride);
    _tile_stored(3, out + kTile * ldo + kTile, stride);
  }
}
#endif

// `epilogue(row, out)` gets the 32 outputs of each row. `a` is in tiles, readable (holding
// anything) up to a multiple of 16 rows; `k` is a multiple of 32.
template <class E, class Source, class Epilogue>
void times_pair(const typename E::T* a, int num_rows, const Source& source, int k,
                const Epilogue& epilogue) {
#if defined(__AMX_BF16__)
  if constexpr (E::kIsBf16) {
    alignas(64) float out[2 * kTile * kPanelPair];
    // The next pair's lines are asked for while all rows of this one are computed.
    const int num_blocks = (num_rows + 2 * kTile - 1) / (2 * kTile);
    Ahead ahead{source.next(k), std::max(1, 32 / num_blocks)};
    for (int row = 0; row < num_rows; row += 2 * kTile) {
      const int rows = std::min(num_rows - row, 2 * kTile);
      const uint16_t* tiles = a + tile_offset(row, 0, k);
      if (rows > kTile)
        tiles_times_pair<true>(tiles, source, k, out, kPanelPair, ahead);
      else
        tiles_times_pair<false>(tiles, source, k, out, kPanelPair, ahead);
      ahead.at += ahead.lines * 32 * (k / kDepth);
      for (int r = 0; r < rows; r++) epilogue(row + r, out + r * kPanelPair);
    }
    return;
  }
#endif
  for (int row = 0; row < num_rows; row += kMaxBlockRows)
    rows_times_pair<E, kMaxBlockRows>(a, row, std::min(num_rows - row, kMaxBlockRows), source, k,
                                      epilogue);
}

}  // namespace hr
