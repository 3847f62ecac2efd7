// The decoder for one type of weights; see model.h.
#pragma once

#include "weights.h"

namespace hr {

template <class E>
class Decoder final : public Model {
 public:
  explicit Decoder(const hr_config& config)
      : c_(config), group_(config.num_heads / config.num_kv_heads),
        q_size_(config.num_heads * config.head_dim),
        kv_size_(config.num_kv_heads * config.head_dim), qkv_size_(q_size_ + 2 * kv_size_),
        threads_(std::max(1, config.num_threads)), weights_(config) {}

  void allocate(int num_blocks, int max_tokens, int max_rows) override {
    allocate_workspace(round_up(max_tokens, kTile) + kTile, round_up(max_rows, kTile) + kTile);
    pool_ = Memory();
    pool_ = Memory(block_bytes() * num_blocks);
    pool_.touch(threads_);  // taken now, not in the middle of a service
  }

  char* block(int id) override { return pool_.as<char>() + id * block_bytes(); }

  void set_rows(int32_t which, int layer, int first, int count, const void* data) override {
    weights_.set_rows(which, layer, first, count, data, threads_);
  }

  void step(const hr_row* rows, int num_rows, int32_t* greedy, uint8_t* finite,
            float* logits) override {
    plan(rows, num_rows);
    threads_.enter();
    embed();
    for (int layer = 0; layer < c_.num_layers; layer++) run_layer(layer);
    finish(greedy, finite, logits);
    threads_.leave();
  }

 private:
  using T = typename E::T;

  struct Segment {  // the step's tokens of one row in one block
    int row, token, position, count;
  };
  struct Query {  // a tile of (token, head) pairs of one row, for each KV head
    int row, first, count;
  };
  struct Best {
    f16v value;
    i16v index;
    f16v spoilt;  // NaN in a lane that saw a logit that is not finite
  };

  size_t block_bytes() const {
    return sizeof(T) * 2 * kBlockTokens * kv_size_ * c_.num_layers;
  }

  void allocate_workspace(size_t tokens, size_t rows) {
    x_ = Memory(sizeof(float) * tokens * c_.hidden);
    qkv_ = Memory(sizeof(float) * tokens * qkv_size_);
    normed_ = Memory(sizeof(T) * std::max(tokens, rows) * c_.hidden);
    query_ = Memory(sizeof(T) * (tokens * group_ + rows * kQueryRows) * kv_size_);
    attended_ = Memory(sizeof(T) * tokens * q_size_);
    gated_ = Memory(sizeof(T) * tokens * c_.intermediate);
    const size_t pair_size = kPanelPair * std::max({c_.hidden, c_.intermediate, q_size_});
    scratch_.clear();
    best_.clear();
    widened_.clear();
    for (int i = 0; i < threads_.num_threads(); i++) {
      scratch_.emplace_back(c_.head_dim);
      best_.emplace_back(sizeof(Best) * rows);
      widened_.emplace_back(c_.is_int8 ? sizeof(T) * pair_size : 0);
    }
  }

  void plan(const hr_row* rows, int num_rows) {
    rows_ = rows;
    num_tokens_ = num_rotated_ = 0;
    first_token_.clear();
    first_query_.clear();
    segments_.clear();
    queries_.clear();
    wanted_.clear();
    for (int r = 0; r < num_rows; r++) {
      const hr_row& row = rows[r];
      first_token_.push_back(num_tokens_);
      for (int done = 0; done < row.num_tokens;) {
        const int position = row.start + done;
        const int count =
            std::min(row.num_tokens - done, kBlockTokens - position % kBlockTokens);
        segments_.push_back({r, num_tokens_ + done, position, count});
        done += count;
      }
      first_query_.push_back(static_cast<int>(queries_.size()));
      for (int at = 0; at < row.num_tokens * group_; at += kQueryRows)
        queries_.push_back({r, at, std::min(kQueryRows, row.num_tokens * group_ - at)});
      if (!rotates_itself(r)) num_rotated_ = static_cast<int>(segments_.size());
      num_tokens_ += row.num_tokens;
      if (row.wanted != 0) wanted_.push_back(r);
    }
  }

  static constexpr int kRowsPerChunk = 8;
  static constexpr int kMaxHeadDim = 512;

  template <class Work>
  void for_tokens(int num, const Work& work) {
    threads_.run((num + kRowsPerChunk - 1) / kRowsPerChunk, [&](int chunk, int) {
      const int end = std::min(num, (chunk + 1) * kRowsPerChunk);
      for (int i = chunk * kRowsPerChunk; i < end; i++) work(i);
    });
  }

  template <class Epilogue>
  void linear(const Memory& input, int num_rows, const Matrix<T>& matrix, const Epilogue& epilogue) {
    const int k = matrix.k, num_pairs = round_up(matrix.num_outputs, kPanelPair) / kPanelPair;
    const size_t pair_size = static_cast<size_t>(kPanelPair) * k;
    threads_.run(num_pairs, [&](int pair, int thread) {
      const auto with = [&](const auto& source, const auto& scaled) {
        times_pair<E>(input.as<T>(), num_rows, source, k, [&](int row, float* out) {
          scaled(out);
          epilogue(row, pair, out, thread);
        });
      };
      if (!c_.is_int8) {
        with(Plain<E>{matrix.values + pair * pair_size}, [](float*) {});
        return;
      }
      const int8_t* bytes = matrix.bytes + pair * pair_size;
      const float* scales = matrix.scales.data() + pair * kPanelPair;
      const auto scaled = [&](float* out) {
        for (int at = 0; at < kPanelPair; at += kLanes)
          store(out + at, load<f16v>(out + at) * load<f16v>(scales + at));
      };
      if (num_rows <= 2 * kTile) {
        with(Widened<E>{bytes, {}}, scaled);
        return;
      }
      T* all = widened_[thread].template as<T>();  // many rows: widened once for all of them
      for (int depth = 0; depth < k / kDepth; depth++)
        widen<E>(bytes, depth, all + depth * kPanelPair * kDepth);
      with(Plain<E>{all}, scaled);
    });
  }

  void embed() {
    for_tokens(static_cast<int>(segments_.size()), [&](int s) {
      const Segment& segment = segments_[s];
      const hr_row& row = rows_[segment.row];
      for (int i = 0; i < segment.count; i++) {
        const int id = row.token_ids[segment.position + i - row.start];
        const T* from = weights_.embedding(id);
        float* to = x_.as<float>() + static_cast<size_t>(segment.token + i) * c_.hidden;
        for (int at = 0; at < c_.hidden; at += kLanes)
          store(to + at, E::get(from + at) * c_.embedding_scale);
      }
    });
  }

  // 1 / the root mean square.
  float inverse_rms(const float* from, int size) const {
    f16v squares = {};
    for (int at = 0; at < size; at += kLanes) {
      const f16v x = load<f16v>(from + at);
      squares += x * x;
    }
    return 1.0f / std::sqrt(sum(squares) / size + c_.norm_eps);
  }

  // One row of `from` into one row of the tiles at `to`.
  void normalize(const float* from, const std::vector<float>& weight, T* to, int row) const {
    const float factor = inverse_rms(from, c_.hidden);
    for (int at = 0; at < c_.hidden; at += kLanes)
      E::put(to + tile_offset(row, at, c_.hidden),
             load<f16v>(from + at) * factor * load<f16v>(weight.data() + at));
  }

  void normalize_all(const std::vector<float>& weight) {
    for_tokens(num_tokens_, [&](int i) {
      normalize(x_.as<float>() + static_cast<size_t>(i) * c_.hidden, weight, normed_.as<T>(), i);
    });
  }

  void run_layer(int index) {
    const Layer<T>& layer = weights_.layers[index];
    normalize_all(layer.input_norm);
    linear(normed_, num_tokens_, layer.qkv,
           [&](int row, int pair, const float* out, int) {
             float* to = qkv_.as<float>() + static_cast<size_t>(row) * qkv_size_ + pair * kPanelPair;
             const bool biased = !layer.qkv_bias.empty();
             for (int at = 0; at < kPanelPair; at += kLanes) {
               f16v y = load<f16v>(out + at);
               if (biased) y += load<f16v>(layer.qkv_bias.data() + pair * kPanelPair + at);
               store(to + at, y);
             }
           });
    threads_.run(num_rotated_, [&](int chunk, int) {
      const Segment& segment = segments_[chunk];
      if (rotates_itself(segment.row)) return;
      for (int head = 0; head < c_.num_kv_heads; head++) rotate(layer, index, segment, head);
    });
    threads_.run(static_cast<int>(queries_.size()) * c_.num_kv_heads, [&](int chunk, int thread) {
      prefetch_head(index, chunk + 1);
      attend_query(layer, index, chunk / c_.num_kv_heads, chunk % c_.num_kv_heads, thread);
    });
    const auto add = [&](int row, int pair, const float* out, int) {
      float* to = x_.as<float>() + static_cast<size_t>(row) * c_.hidden + pair * kPanelPair;
      for (int at = 0; at < kPanelPair; at += kLanes)
        store(to + at, load<f16v>(to + at) + load<f16v>(out + at) * c_.residual_scale);
    };
    linear(attended_, num_tokens_, layer.out, add);
    normalize_all(layer.post_norm);
    linear(normed_, num_tokens_, layer.gate_up,
           [&](int row, int pair, const float* out, int) {
             E::put(gated_.as<T>() + tile_offset(row, pair * kTile, c_.intermediate),
                    silu<E>(load<f16v>(out)) * load<f16v>(out + kTile));
           });
    linear(gated_, num_tokens_, layer.down, add);
  }

  KeyValueHead<E> head_of(int row, int block_index, int layer, int kv_head) {
    const size_t size = static_cast<size_t>(kBlockTokens) * c_.head_dim;
    T* at = reinterpret_cast<T*>(block(rows_[row].blocks[block_index])) +
            (static_cast<size_t>(layer) * c_.num_kv_heads + kv_head) * 2 * size;
    return {at, at + size, c_.head_dim};
  }

  // A decoding row is rotated by the thread that attends it: its cache lines stay on that core.
  bool rotates_itself(int row) const {
    return rows_[row].num_tokens == 1 && group_ <= kQueryRows;
  }

  T* query_tile(int query, int kv_head) const {
    return query_.as<T>() +
           (static_cast<size_t>(query) * c_.num_kv_heads + kv_head) * kQueryRows * c_.head_dim;
  }

  // Queries and keys of one KV head to their positions; its keys and values into the block.
  void rotate(const Layer<T>& layer, int index, const Segment& segment, int kv_head) {
    alignas(64) float turned[kMaxHeadDim];
    const int dim = c_.head_dim, first_token = first_token_[segment.row];
    KeyValueHead<E> block =
        head_of(segment.row, segment.position / kBlockTokens, index, kv_head);
    for (int i = 0; i < segment.count; i++) {
      const int position = segment.position + i, token = segment.token + i;
      const float* qkv = qkv_.as<float>() + static_cast<size_t>(token) * qkv_size_;
      // what a former owner left could be NaN, and 0 * NaN is not 0
      if (position % kBlockTokens == 0) block.clear();
      turn(qkv + q_size_ + kv_head * dim, layer.k_norm, position, turned);
      block.put(position % kBlockTokens, turned, qkv + q_size_ + kv_size_ + kv_head * dim);
      for (int head = 0; head < group_; head++) {
        turn(qkv + (kv_head * group_ + head) * dim, layer.q_norm, position, turned);
        const int pair = (token - first_token) * group_ + head;
        T* to = query_tile(first_query_[segment.row] + pair / kQueryRows, kv_head);
        for (int at = 0; at < dim; at += kLanes)
          E::put(to + tile_offset(pair % kQueryRows, at, dim), load<f16v>(turned + at));
      }
    }
  }

  void turn(const float* from, const std::vector<float>& norm, int position, float* to) const {
    const int half = c_.head_dim / 2;
    const float factor = norm.empty() ? 1.0f : inverse_rms(from, c_.head_dim);
    const float* cos = weights_.cos.data() + static_cast<size_t>(position) * half;
    const float* sin = weights_.sin.data() + static_cast<size_t>(position) * half;
    for (int at = 0; at < half; at += kLanes) {
      f16v a = load<f16v>(from + at), b = load<f16v>(from + half + at);
      if (!norm.empty()) {
        a = a * factor * load<f16v>(norm.data() + at);
        b = b * factor * load<f16v>(norm.data() + half + at);
      }
      const f16v c = load<f16v>(cos + at), s = load<f16v>(sin + at);
      store(to + at, a * c - b * s);
      store(to + half + at, b * c + a * s);
    }
  }

  // What a decoding row reads lies far apart, and nothing is computed long enough to hide that.
  void prefetch_head(int index, int chunk) {
    const int query = chunk / c_.num_kv_heads;
    if (query >= static_cast<int>(queries_.size()) || !rotates_itself(queries_[query].row)) return;
    const hr_row& row = rows_[queries_[query].row];
    for (int block = 0; block * kBlockTokens <= row.start; block++) {
      const auto head = head_of(queries_[query].row, block, index, chunk % c_.num_kv_heads);
      const char* at = reinterpret_cast<const char*>(head.keys);
      for (int line = 0; line < 4 * kBlockTokens * c_.head_dim; line += 64)
        __builtin_prefetch(at + line, 0, 2);
    }
  }

  void attend_query(const Layer<T>& layer, int index, int chunk, int kv_head, int thread) {
    const Query& query = queries_[chunk];
    const hr_row& row = rows_[query.row];
    const int dim = c_.head_dim, first = first_token_[query.row];
    if (rotates_itself(query.row))
      rotate(layer, index, {query.row, first, row.start, 1}, kv_head);
    attend<E>(
        query_tile(chunk, kv_head), query.count, dim, c_.attention_scale,
        [&](int r) { return row.start + (query.first + r) / group_ + 1; },
        [&](int block_index) { return head_of(query.row, block_index, index, kv_head); },
        [&](int r, const float* sums, float factor) {
          const int token = first + (query.first + r) / group_;
          const int head = kv_head * group_ + (query.first + r) % group_;
          for (int at = 0; at < dim; at += kLanes)
            E::put(attended_.as<T>() + tile_offset(token, head * dim + at, q_size_),
                   load<f16v>(sums + at) * factor);
        },
        scratch_[thread]);
  }

  void finish(int32_t* greedy, uint8_t* finite, float* logits) {
    const int num = static_cast<int>(wanted_.size());
    if (num == 0) return;
    std::vector<float*> kept(num, nullptr);
    float* at = logits;
    for (int i = 0; i < num; i++)
      if (rows_[wanted_[i]].wanted == 2) {
        kept[i] = at;
        at += c_.vocab;
      }
    for_tokens(num, [&](int i) {
      const int r = wanted_[i], token = first_token_[r] + rows_[r].num_tokens - 1;
      normalize(x_.as<float>() + static_cast<size_t>(token) * c_.hidden, weights_.final_norm,
                normed_.as<T>(), i);
    });
    for (Memory& best : best_)
      for (int i = 0; i < num; i++) best.as<Best>()[i] = {splat(-INFINITY), lanes(), f16v{}};
    linear(normed_, num, weights_.head,
           [&](int i, int pair, const float* out, int thread) {
             Best& best = best_[thread].template as<Best>()[i];
             for (int part = 0; part < kPanelPair; part += kLanes) {
               const int first = pair * kPanelPair + part, room = c_.vocab - first;
               if (room <= 0) break;
               f16v y = load<f16v>(out + part) * c_.logit_scale;
               if (kept[i] != nullptr)
                 std::memcpy(kept[i] + first, &y, sizeof(float) * std::min(room, kLanes));
               best.spoilt += y * 0.0f;
               if (room < kLanes) y = lanes() < room ? y : splat(-INFINITY);
               const i16v index = lanes() + first;
               // chunks come in any order: of equal ones the lower index stays
               const i16v better = (y > best.value) | ((y == best.value) & (index < best.index));
               best.value = better ? y : best.value;
               best.index = better ? index : best.index;
             }
           });
    for (int i = 0; i < num; i++) choose(i, greedy, finite);
  }

  void choose(int i, int32_t* greedy, uint8_t* finite) {
    float value = -INFINITY;
    int32_t index = 0;
    bool is_finite = true;
    for (Memory& memory : best_) {
      const Best& best = memory.as<Best>()[i];
      for (int l = 0; l < kLanes; l++) {
        is_finite &= best.spoilt[l] == 0.0f;
        if (best.value[l] > value || (best.value[l] == value && best.index[l] < index)) {
          value = best.value[l];
          index = best.index[l];
        }
      }
    }
    greedy[i] = index;
    finite[i] = is_finite;
  }

  const hr_config c_;
  const int group_, q_size_, kv_size_, qkv_size_;
  Pool threads_;
  Weights<E> weights_;
  Memory pool_;
  Memory x_, qkv_, normed_, query_, attended_, gated_;
  std::vector<AttentionScratch<E>> scratch_;
  std::vector<Memory> best_, widened_;
  // the step that runs
  const hr_row* rows_ = nullptr;
  int num_tokens_ = 0, num_rotated_ = 0;  // segments up to num_rotated_ may have to be rotated
  std::vector<int> first_token_, first_query_, wanted_;
  std::vector<Segment> segments_;
  std::vector<Query> queries_;
};

}  // namespace hr
