// The weights of a decoder: packed matrices, vectors, rotary tables; and how they get there.
#pragma once

#include "model.h"

namespace hr {

// A linear layer, packed. Quantised: bytes, and one scale for each output.
template <class T>
struct Matrix {
  int num_outputs = 0, k = 0;
  T* values = nullptr;
  int8_t* bytes = nullptr;
  std::vector<float> scales;
};

template <class T>
struct Layer {
  Matrix<T> qkv, out, gate_up, down;
  std::vector<float> input_norm, post_norm, qkv_bias, q_norm, k_norm;  // the last three: or empty
};

template <class E>
class Weights {
 public:
  using T = typename E::T;

  explicit Weights(const hr_config& config)
      : c_(config), q_size_(config.num_heads * config.head_dim),
        qkv_size_(q_size_ + 2 * config.num_kv_heads * config.head_dim) {
    embedding_ = Memory(sizeof(T) * static_cast<size_t>(c_.vocab) * c_.hidden);
    layers.resize(c_.num_layers);
    std::vector<Matrix<T>*> all;
    const auto shape = [&](Matrix<T>& matrix, int num_outputs, int k) {
      matrix.num_outputs = num_outputs;
      matrix.k = k;
      all.push_back(&matrix);
    };
    for (Layer<T>& layer : layers) {
      shape(layer.qkv, qkv_size_, c_.hidden);
      shape(layer.out, c_.hidden, q_size_);
      shape(layer.gate_up, 2 * c_.intermediate, c_.hidden);
      shape(layer.down, c_.hidden, c_.intermediate);
      layer.input_norm.resize(c_.hidden);
      layer.post_norm.resize(c_.hidden);
    }
    shape(head, c_.vocab, c_.hidden);
    size_t elements = 0;
    for (Matrix<T>* matrix : all) elements += packed_elements(matrix->num_outputs, matrix->k);
    matrices_ = Memory(elements * (c_.is_int8 ? 1 : sizeof(T)));
    size_t at = 0;
    for (Matrix<T>* matrix : all) {
      if (c_.is_int8) {
        matrix->bytes = matrices_.as<int8_t>() + at;
        matrix->scales.resize(round_up(matrix->num_outputs, kPanelPair));
      } else {
        matrix->values = matrices_.as<T>() + at;
      }
      at += packed_elements(matrix->num_outputs, matrix->k);
    }
    final_norm.resize(c_.hidden);
    cos.resize(static_cast<size_t>(c_.max_positions) * c_.head_dim / 2);
    sin.resize(cos.size());
  }

  const T* embedding(int id) const {
    return embedding_.as<T>() + static_cast<size_t>(id) * c_.hidden;
  }

  void set_rows(int32_t which, int layer, int first, int count, const void* data, Pool& threads) {
    if (which == kEmbedding) {
      std::memcpy(embedding_.as<T>() + static_cast<size_t>(first) * c_.hidden, data,
                  sizeof(T) * c_.hidden * count);
      return;
    }
    if (float* vector = find_vector(which, layer); vector != nullptr) {
      std::memcpy(vector + first, data, sizeof(float) * count);
      return;
    }
    Matrix<T>& matrix = find_matrix(which, layer);
    threads.enter();
    threads.run(count, [&](int i, int) {
      const int output = which == kGateUp ? interleaved(first + i) : first + i;
      set_row(matrix, output, static_cast<const T*>(data) + static_cast<size_t>(i) * matrix.k);
    });
    threads.leave();
  }

  std::vector<Layer<T>> layers;
  Matrix<T> head;
  std::vector<float> final_norm, cos, sin;

 private:
  float* find_vector(int32_t which, int layer) {
    const auto sized = [](std::vector<float>& vector, int size) {
      vector.resize(size);
      return vector.data();
    };
    switch (which) {
      case kFinalNorm: return final_norm.data();
      case kCos: return cos.data();
      case kSin: return sin.data();
      case kInputNorm: return layers[layer].input_norm.data();
      case kPostNorm: return layers[layer].post_norm.data();
      case kQkvBias: return sized(layers[layer].qkv_bias, qkv_size_);
      case kQNorm: return sized(layers[layer].q_norm, c_.head_dim);
      case kKNorm: return sized(layers[layer].k_norm, c_.head_dim);
      default: return nullptr;
    }
  }

  Matrix<T>& find_matrix(int32_t which, int layer) {
    switch (which) {
      case kHead: return head;
      case kQkv: return layers[layer].qkv;
      case kOut: return layers[layer].out;
      case kGateUp: return layers[layer].gate_up;
      default: return layers[layer].down;
    }
  }

  // Quantised symmetrically: the largest of an output's weights becomes 127.
  void set_row(Matrix<T>& matrix, int output, const T* row) {
    if (!c_.is_int8) {
      pack_row<E>(matrix.values, [&](int i) { return row[i]; }, output, matrix.k);
      return;
    }
    alignas(64) float lane[kLanes];
    const auto weight = [&](int i) {
      if (i % kLanes == 0) store(lane, E::get(row + i));
      return lane[i % kLanes];
    };
    float largest = 0.0f;
    for (int i = 0; i < matrix.k; i++) largest = std::max(largest, std::fabs(weight(i)));
    const float scale = largest / 127.0f, factor = largest > 0.0f ? 127.0f / largest : 0.0f;
    matrix.scales[output] = scale;
    pack_row<E>(
        matrix.bytes, [&](int i) { return static_cast<int8_t>(std::lrint(weight(i) * factor)); },
        output, matrix.k);
  }

  // Gate and up alternate by panels, so that a pair holds both of 16 outputs.
  int interleaved(int row) const {
    const int up = row >= c_.intermediate, output = row - up * c_.intermediate;
    return output / kTile * kPanelPair + up * kTile + output % kTile;
  }

  const hr_config c_;
  const int q_size_, qkv_size_;
  Memory matrices_, embedding_;
};

}  // namespace hr
