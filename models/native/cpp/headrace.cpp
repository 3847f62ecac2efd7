// The C interface of the native step; models/native/library.py calls it. Nothing throws across it.
#include <sys/syscall.h>
#include <unistd.h>

#include "decoder.h"

namespace hr {

std::unique_ptr<Model> make_model(const hr_config& config) {
  if (config.is_bf16) return std::make_unique<Decoder<Bf16>>(config);
  return std::make_unique<Decoder<F32>>(config);
}

}  // namespace hr

#if defined(__AMX_BF16__)
constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
#endif

extern "C" {

// What decides the last bit of a result: the instructions that multiply.
const char* hr_kernels(int32_t is_bf16) {
#if defined(__AMX_BF16__)
  if (is_bf16) return "amx";
#elif defined(__AVX512BF16__)
  if (is_bf16) return "avx512bf16";
#endif
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return is_bf16 ? "fma-bf16" : "fma";
#else
  return is_bf16 ? "plain-bf16" : "plain";
#endif
}

// Null: there is not enough memory, or the system does not let us use its tile registers.
hr::Model* hr_create(const hr::hr_config* config) {
#if defined(__AMX_BF16__)
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return nullptr;
#endif
  try {
    return hr::make_model(*config).release();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void hr_destroy(hr::Model* model) { delete model; }

// 0, or 1 if there is not enough memory.
int32_t hr_allocate(hr::Model* model, int32_t num_blocks, int32_t max_tokens, int32_t max_rows) {
  try {
    model->allocate(num_blocks, max_tokens, max_rows);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

void hr_set_rows(hr::Model* model, int32_t which, int32_t layer, int32_t first_row,
                 int32_t num_rows, const void* data) {
  model->set_rows(which, layer, first_row, num_rows, data);
}

void* hr_block(hr::Model* model, int32_t id) { return model->block(id); }

void hr_step(hr::Model* model, const hr::hr_row* rows, int32_t num_rows, int32_t* greedy,
             uint8_t* finite, float* logits) {
  model->step(rows, num_rows, greedy, finite, logits);
}
}
