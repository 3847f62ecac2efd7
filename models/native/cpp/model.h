// A decoder of the Llama kind on a CPU: packed weights, a pool of KV blocks, and one step over a
// ragged batch of rows.
#pragma once

#include <sys/mman.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "pool.h"

namespace hr {

// Zeroed memory in huge pages where the system has them: reading weights through small pages costs
// a third of the bandwidth.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    madvise(at, bytes, MADV_HUGEPAGE);
    data_ = at;
  }
  Memory(Memory&& other) noexcept { swap(other); }
  Memory& operator=(Memory&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Memory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }

  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

  // Makes the system give the pages, which it zeroes: 0.5 GB/s a thread in a virtual machine.
  void touch(Pool& threads) const {
    constexpr size_t kPage = 4096, kChunk = 8 << 20;
    volatile char* at = as<char>();
    threads.run(static_cast<int>((bytes_ + kChunk - 1) / kChunk), [&](int chunk, int) {
      const size_t end = std::min(bytes_, (chunk + 1) * kChunk);
      for (size_t i = chunk * kChunk; i < end; i += kPage) at[i] = 0;
    });
  }

 private:
  void swap(Memory& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

extern "C" struct hr_config {
  int32_t is_bf16, is_int8, num_threads;  // int8: the weights of linear layers only
  int32_t num_layers, hidden, intermediate, num_heads, num_kv_heads, head_dim, vocab;
  int32_t max_positions;
  float norm_eps, attention_scale, embedding_scale, residual_scale, logit_scale;
};

extern "C" struct hr_row {
  const int32_t* blocks;
  const int32_t* token_ids;
  int32_t start, num_tokens, wanted;  // wanted: 0 nothing, 1 greedy, 2 logits
};

enum Weight : int32_t {
  kEmbedding, kHead, kFinalNorm, kCos, kSin,                           // once
  kQkv, kOut, kGateUp, kDown, kInputNorm, kPostNorm, kQkvBias, kQNorm, kKNorm,  // in each layer
};

class Model {
 public:
  virtual ~Model() = default;
  // Memory for KV blocks, and for steps of up to so many tokens, of which so many rows want logits.
  virtual void allocate(int num_blocks, int max_tokens, int max_rows) = 0;
  virtual char* block(int id) = 0;
  // One row of a weight matrix, or a whole vector (row 0); matrices are of the model's type, all
  // else is float. For kGateUp the rows of gate and up are the model's own, one behind the other.
  virtual void set_rows(int32_t which, int layer, int first_row, int num_rows, const void* data) = 0;
  virtual void step(const hr_row* rows, int num_rows, int32_t* greedy, uint8_t* finite,
                    float* logits) = 0;
};

std::unique_ptr<Model> make_model(const hr_config& config);

}  // namespace hr
