// Causal attention of a step's tokens over KV blocks of 32 tokens, grouped heads.
//
// A block holds, for each layer and KV head, the keys as a panel pair (outputs: its 32 tokens) and
// the values as one panel pair for each 32 dimensions (k: its 32 tokens). Keys are taken in spans
// of 512 from position 0 on, whatever the step, so a token's result does not depend on whether it
// was decoded or prefilled, or on its neighbours.
#pragma once

#include <vector>

#include "gemm.h"

namespace hr {

constexpr int kBlockTokens = 32;
constexpr int kSpanBlocks = 16;
constexpr int kSpan = kSpanBlocks * kBlockTokens;
constexpr int kQueryRows = 16;  // (token, head) pairs that are attended together

template <class E>
struct KeyValueHead {  // one block, one layer, one head
  typename E::T* keys;
  typename E::T* values;
  int dim;

  void clear() {
    std::memset(keys, 0, sizeof(typename E::T) * kBlockTokens * dim);
    std::memset(values, 0, sizeof(typename E::T) * kBlockTokens * dim);
  }

  void put(int token, const float* key, const float* value) {
    using T = typename E::T;
    T* k = keys + packed_offset<E>(token, 0);
    T* v = values + packed_offset<E>(0, token);
    for (int at = 0; at < dim; at += kTile) {
      T from[2][kTile];
      E::put(from[0], load<f16v>(key + at));
      E::put(from[1], load<f16v>(value + at));
      if constexpr (E::kIsBf16) {
        for (int i = 0; i < kTile; i += 2)
          std::memcpy(k + at / kDepth * 1024 + (at + i) % kDepth / 2 * 32, from[0] + i,
                      2 * sizeof(T));
        T* to = v + at / kPanelPair * 1024 + at % kPanelPair / kTile * 512;
        for (int i = 0; i < kTile; i++) to[2 * i] = from[1][i];
      } else {
        for (int i = 0; i < kTile; i++) k[(at + i) * kPanelPair] = from[0][i];
        std::memcpy(v + at / kPanelPair * 1024 + at % kPanelPair, from[1], sizeof(from[1]));
      }
    }
  }
};

// What one thread needs to attend.
template <class E>
struct AttentionScratch {
  explicit AttentionScratch(int dim)
      : scores(kQueryRows * kSpan), weights(kQueryRows * kSpan), sums(kQueryRows * dim),
        part(kQueryRows * dim) {}

  std::vector<float> scores;           // (query rows, span)
  std::vector<typename E::T> weights;  // the same, a tile for each block
  std::vector<float> sums, part;       // (query rows, dim)
};

template <class E, int R>
inline void weighted_rows(const typename E::T* weights, int row, int num_rows,
                          const typename E::T* const* values, int num_blocks, int dim,
                          float* out) {
  if constexpr (R > 1) {
    if (num_rows < R)
      return weighted_rows<E, R - 1>(weights, row, num_rows, values, num_blocks, dim, out);
  }
  for (int at = 0; at < dim; at += kPanelPair) {
    Block<E, R> block;
    block.clear();
    for (int b = 0; b < num_blocks; b++)
      block.multiply(weights + tile_offset(row, b * kBlockTokens, kSpan),
                     Plain<E>{values[b] + at * kBlockTokens}, kBlockTokens);
    for (int r = 0; r < R; r++) {
      store(out + (row + r) * dim + at, block.acc[r][0]);
      store(out + (row + r) * dim + at + kTile, block.acc[r][1]);
    }
  }
}

// out = weights x values: (rows, dim).
template <class E>
void weighted_values(const typename E::T* weights, int num_rows,
                     const typename E::T* const* values, int num_blocks, int dim, float* out) {
#if defined(__AMX_BF16__)
  if constexpr (E::kIsBf16) {
    written(weights);
    for (int at = 0; at < dim; at += kPanelPair) {
      _tile_zero(0);
      _tile_zero(1);
      for (int b = 0; b < num_blocks; b++) {
        const uint16_t* pair = values[b] + at * kBlockTokens;
        _tile_loadd(4, weights + b * kTile * kDepth, 64);
        _tile_loadd(6, pair, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, pair + 512, 64);
        _tile_dpbf16ps(1, 4, 7);
      }
      _tile_stored(0, out + at, dim * 4);
      _tile_stored(1, out + at + kTile, dim * 4);
    }
    return;
  }
#endif
  for (int row = 0; row < num_rows; row += kMaxBlockRows)
    weighted_rows<E, kMaxBlockRows>(weights, row, std::min(num_rows - row, kMaxBlockRows), values,
                                    num_blocks, dim, out);
}

template <class E>
void query_times_keys(const typename E::T* query, int num_rows, const typename E::T* keys, int dim,
                      float* scores) {
#if defined(__AMX_BF16__)
  if constexpr (E::kIsBf16) {
    tiles_times_pair<false>(query, Plain<E>{keys}, dim, scores, kSpan);
    return;
  }
#endif
  times_pair<E>(query, num_rows, Plain<E>{keys}, dim, [&](int row, const float* out) {
    std::memcpy(scores + row * kSpan, out, kPanelPair * sizeof(float));
  });
}

// Turns the first `num_keys` scores of a row into weights 2^(scale * score - top); those behind
// them are 0. Returns the sum of the weights. `weights` points to the row in its first tile.
template <class E>
inline float weigh(const float* scores, int num_keys, int num_slots, float scale, float top,
                   typename E::T* weights) {
  f16v total = {};
  for (int at = 0; at < num_slots; at += kLanes) {
    f16v weight = {};
    if (at < num_keys) {
      weight = exp2<E::kExpTerms>(load<f16v>(scores + at) * scale - top);
      if (num_keys - at < kLanes) weight = lanes() < num_keys - at ? weight : f16v{};
    }
    total += weight;
    E::put(weights + at / kDepth * (kTile * kDepth) + at % kDepth, weight);
  }
  return sum(total);
}

inline float top_score(const float* scores, int num_keys) {
  f16v best = splat(-INFINITY);
  for (int at = 0; at < num_keys; at += kLanes) {
    f16v score = load<f16v>(scores + at);
    if (num_keys - at < kLanes) score = lanes() < num_keys - at ? score : splat(-INFINITY);
    best = vmax(best, score);
  }
  return max_of(best);
}

// Attends `num_rows` query rows (tiles of 16 rows x 32 dimensions). Row r sees the keys
// in [0, num_keys(r)); `head(block)` gives the block's keys and values; `emit(r, sums, factor)`
// gets (dim) sums to be multiplied by the factor.
template <class E, class NumKeys, class Head, class Emit>
void attend(const typename E::T* query, int num_rows, int dim, float scale, const NumKeys& num_keys,
            const Head& head, const Emit& emit, AttentionScratch<E>& scratch) {
  float top[kQueryRows], total[kQueryRows], fade[kQueryRows];
  scale *= kLog2E;
  for (int r = 0; r < num_rows; r++) {
    top[r] = -INFINITY;
    total[r] = 0.0f;
  }
  int most_keys = 0;
  for (int r = 0; r < num_rows; r++) most_keys = std::max(most_keys, num_keys(r));
  for (int first = 0; first < most_keys; first += kSpan) {
    const int slots = std::min(round_up(most_keys - first, kBlockTokens), kSpan);
    const int num_blocks = slots / kBlockTokens;
    const typename E::T* values[kSpanBlocks];
    for (int b = 0; b < num_blocks; b++) {
      const KeyValueHead<E> block = head(first / kBlockTokens + b);
      values[b] = block.values;
      query_times_keys<E>(query, num_rows, block.keys, dim,
                          scratch.scores.data() + b * kBlockTokens);
    }
    for (int r = 0; r < num_rows; r++) {
      const float* scores = scratch.scores.data() + r * kSpan;
      const int keys = std::min(std::max(num_keys(r) - first, 0), slots);
      const float before = top[r];
      if (keys > 0) top[r] = std::max(before, top_score(scores, keys) * scale);
      fade[r] = before == top[r] ? 1.0f : std::exp2(before - top[r]);
      total[r] = total[r] * fade[r] + weigh<E>(scores, keys, slots, scale, top[r],
                                               scratch.weights.data() + r * kDepth);
    }
    weighted_values<E>(scratch.weights.data(), num_rows, values, num_blocks, dim,
                       first == 0 ? scratch.sums.data() : scratch.part.data());
    if (first == 0) continue;
    for (int r = 0; r < num_rows; r++)
      for (int at = 0; at < dim; at += kLanes) {
        float* sums = scratch.sums.data() + r * dim + at;
        store(sums, load<f16v>(sums) * fade[r] + load<f16v>(scratch.part.data() + r * dim + at));
      }
  }
  for (int r = 0; r < num_rows; r++) emit(r, scratch.sums.data() + r * dim, 1.0f / total[r]);
}

}  // namespace hr
