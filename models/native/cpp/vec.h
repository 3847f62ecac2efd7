// Vectors of 16 floats, and the conversions and functions on them that a step needs.
//
// Written with the compiler's own vector types, so that each lane is computed in the same order on
// every instruction set; only the bfloat16 products and roundings use special instructions.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hr {

typedef float f16v __attribute__((vector_size(64)));
typedef int32_t i16v __attribute__((vector_size(64)));
typedef uint32_t u16v __attribute__((vector_size(64)));
typedef uint16_t h16v __attribute__((vector_size(32)));
typedef int8_t c16v __attribute__((vector_size(16)));

constexpr int kLanes = 16;

// NOTE: GCC's tile intrinsics do not say what memory they read, so it may leave out or put off the
// writes to it: an all-zero tile configuration, and the process is killed. This goes between.
inline void written(const void* at) { __asm__ volatile("" : : "r"(at) : "memory"); }

template <class V, class P>
inline V load(const P* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <class V, class P>
inline void store(P* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

inline f16v splat(float x) { return f16v{} + x; }
inline i16v lanes() { return i16v{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }
inline f16v vmax(f16v a, f16v b) { return a > b ? a : b; }

typedef float f8v __attribute__((vector_size(32)));
typedef float f4v __attribute__((vector_size(16)));

// Always folded in the same order: halves upon halves.
template <class Fold>
inline float fold(f16v v, const Fold& with) {
  const f8v a = with(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7),
                     __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  const f4v b = with(__builtin_shufflevector(a, a, 0, 1, 2, 3),
                     __builtin_shufflevector(a, a, 4, 5, 6, 7));
  const f4v c = with(b, __builtin_shufflevector(b, b, 2, 3, 0, 1));
  const f4v d = with(c, __builtin_shufflevector(c, c, 1, 0, 3, 2));
  return d[0];
}

inline float sum(f16v v) {
  return fold(v, [](auto a, auto b) { return a + b; });
}

inline float max_of(f16v v) {
  return fold(v, [](auto a, auto b) { return a > b ? a : b; });
}

// 2^x; exactly 1 for 0, and 0 below -126. kTerms powers of the series: 4 for what is rounded to
// bfloat16, 7 for float. NaN stays NaN.
template <int kTerms>
inline f16v exp2(f16v x) {
  constexpr float c[] = {1.0f,           6.9314718e-1f, 2.4022651e-1f, 5.5504109e-2f,
                         9.6181291e-3f, 1.3333558e-3f, 1.5403530e-4f, 1.5252734e-5f};
  const f16v magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
  const f16v low = splat(-126.0f), high = splat(127.0f);
  const f16v bounded = x < low ? low : x > high ? high : x;
  const f16v n = (bounded + magic) - magic;
  const f16v r = bounded - n;
  f16v p = splat(c[kTerms]);
  for (int i = kTerms - 1; i >= 0; i--) p = p * r + c[i];
  const f16v power = (f16v)((__builtin_convertvector(n, i16v) + 127) << 23);
  return x < low ? f16v{} : p * power;
}

constexpr float kLog2E = 1.44269504088896341f;

// bfloat16, to the nearest, ties to even; NaN stays NaN.
inline h16v to_bf16(f16v x) {
#if defined(__AVX512BF16__)
  return (h16v)_mm512_cvtneps_pbh((__m512)x);
#else
  const u16v bits = (u16v)x;
  const u16v rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const u16v kept = x == x ? rounded : (u16v{} + 0x7fc0);
  return __builtin_convertvector(kept, h16v);
#endif
}

inline f16v from_int8(c16v x) {
#if defined(__AVX512F__)  // the compiler's own conversion goes byte by byte
  return (f16v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32((__m128i)x));
#else
  return __builtin_convertvector(__builtin_convertvector(x, i16v), f16v);
#endif
}

inline f16v from_bf16(h16v x) { return (f16v)(__builtin_convertvector(x, u16v) << 16); }

// The two kinds of weights, activations and KV state.
struct Bf16 {
  using T = uint16_t;
  static constexpr bool kIsBf16 = true;
  static constexpr int kExpTerms = 4;
  static inline void put(T* p, f16v x) { store(p, to_bf16(x)); }
  static inline f16v get(const T* p) { return from_bf16(load<h16v>(p)); }
};

struct F32 {
  using T = float;
  static constexpr bool kIsBf16 = false;
  static constexpr int kExpTerms = 7;
  static inline void put(T* p, f16v x) { store(p, x); }
  static inline f16v get(const T* p) { return load<f16v>(p); }
};

template <class E>
inline f16v silu(f16v x) {
  const f16v below = exp2<E::kExpTerms>(x * -kLog2E) + 1.0f;
#if defined(__AVX512F__)
  if constexpr (E::kIsBf16) {  // a division takes as long as all the rest
    const f16v about = (f16v)_mm512_rcp14_ps((__m512)below);
    return x * (about * (2.0f - below * about));
  }
#endif
  return x / below;
}

}  // namespace hr
