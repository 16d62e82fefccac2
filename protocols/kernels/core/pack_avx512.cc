// GCC 12 warns of what its own intrinsics leave undefined (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/core/unroll.h"

namespace tfe_bench {
namespace internal {
namespace {

inline uint64_t LowOnes(int64_t count) {
  return count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// 8 << kLevels words as eight of width << kLevels bits: neighbours are joined, level by level.
// Above these bits lies what lay above the width.
template <int kLevels, bool kWhole>
TFE_BENCH_INLINE inline __m512i Join(const uint64_t* x, int64_t n, int width) {
  if constexpr (!kWhole) {
    if (n <= 0) return _mm512_setzero_si512();
  }
  if constexpr (kLevels == 0) {
    return kWhole ? _mm512_loadu_si512(x) : _mm512_maskz_loadu_epi64(LowOnes(n), x);
  } else {
    constexpr int kHalf = 4 << kLevels;
    const int half_width = width << (kLevels - 1);
    const __m512i a = Join<kLevels - 1, kWhole>(x, n, width);
    const __m512i b = Join<kLevels - 1, kWhole>(x + kHalf, n - kHalf, width);
    const __m512i even = _mm512_set_epi64(14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_set_epi64(15, 13, 11, 9, 7, 5, 3, 1);
    const __m512i low = _mm512_permutex2var_epi64(a, even, b);
    const __m512i high = _mm512_sllv_epi64(_mm512_permutex2var_epi64(a, odd, b),
                                           _mm512_set1_epi64(half_width));
    return _mm512_ternarylogic_epi64(_mm512_set1_epi64(LowOnes(half_width)), low, high, 0xCA);
  }
}

// Eight words of more than 32 bits: a packed word has bits of at most three of them.  Each is
// rotated to its place among the bits of packed words, whichever it lies in, and is then chosen.
class WordPacker {
 public:
  explicit WordPacker(int width) {
    const __m512i lane = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i one = _mm512_set1_epi64(1), wide = _mm512_set1_epi64(width);
    const __m512i bit = _mm512_slli_epi64(lane, 6);  // where a packed word begins
    rotation_ = _mm512_mullo_epi64(lane, wide);      // (modulo 64)
    first_ = _mm512_cvttpd_epi64(_mm512_div_pd(_mm512_cvtepi64_pd(bit), _mm512_set1_pd(width)));
    second_ = _mm512_add_epi64(first_, one);
    third_ = _mm512_add_epi64(second_, one);
    const __m512i of_first = _mm512_sub_epi64(_mm512_mullo_epi64(second_, wide), bit);
    const __m512i of_two = _mm512_add_epi64(of_first, wide);
    // (a shift by 64 or more gives 0)
    in_first_ = _mm512_sub_epi64(_mm512_sllv_epi64(one, of_first), one);
    in_two_ = _mm512_sub_epi64(_mm512_sllv_epi64(one, of_two), one);
  }
  __m512i Pack(__m512i words) const {
    words = _mm512_rolv_epi64(words, rotation_);
    const __m512i later = _mm512_ternarylogic_epi64(
        in_two_, _mm512_permutexvar_epi64(second_, words), _mm512_permutexvar_epi64(third_, words),
        0xCA);
    return _mm512_ternarylogic_epi64(in_first_, _mm512_permutexvar_epi64(first_, words), later,
                                     0xCA);
  }

 private:
  __m512i rotation_, first_, second_, third_, in_first_, in_two_;
};

template <int kLevels>
void PackJoined(const uint64_t* x, int64_t n, int width, uint8_t* out) {
  constexpr int kGroup = 8 << kLevels;
  const int bytes = width << kLevels;
  const WordPacker packer(bytes);
  const uint8_t* const last = out + PackedBytes(n, width);
  for (; n >= kGroup; n -= kGroup, x += kGroup, out += bytes) {
    const __m512i packed = packer.Pack(Join<kLevels, true>(x, n, width));
    if (last - out >= 64) {
      _mm512_storeu_si512(out, packed);  // (the next group overwrites what is too much)
    } else {
      _mm512_mask_storeu_epi8(out, LowOnes(bytes), packed);
    }
  }
  if (n == 0) return;
  _mm512_mask_storeu_epi8(out, LowOnes(last - out),
                          packer.Pack(Join<kLevels, false>(x, n, width)));
}

}  // namespace

void PackAvx512(const uint64_t* x, int64_t n, int width, uint8_t* out) {
  const auto pack = width > 32   ? PackJoined<0>
                    : width > 16 ? PackJoined<1>
                    : width > 8  ? PackJoined<2>
                    : width > 4  ? PackJoined<3>
                    : width > 2  ? PackJoined<4>
                    : width == 2 ? PackJoined<5>
                                 : PackJoined<6>;
  pack(x, n, width, out);
}

// Eight words at a time: what each has in the packed word where it begins and in the next.
void UnpackAvx512(const uint8_t* packed, int64_t n, int width, uint64_t* out) {
  const __m512i bit =
      _mm512_mullo_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(width));
  const __m512i first = _mm512_srli_epi64(bit, 6);
  const __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(1));
  const __m512i right = _mm512_and_si512(bit, _mm512_set1_epi64(63));
  const __m512i left = _mm512_sub_epi64(_mm512_set1_epi64(64), right);  // (64 gives 0)
  const __m512i mask = _mm512_set1_epi64(LowOnes(width));
  const uint8_t* const last = packed + PackedBytes(n, width);
  for (; n > 0; n -= 8, packed += width, out += 8) {
    const __m512i v = last - packed >= 64
                          ? _mm512_loadu_si512(packed)
                          : _mm512_maskz_loadu_epi8(LowOnes(last - packed), packed);
    const __m512i low = _mm512_srlv_epi64(_mm512_permutexvar_epi64(first, v), right);
    const __m512i high = _mm512_sllv_epi64(_mm512_permutexvar_epi64(second, v), left);
    const __m512i words = _mm512_ternarylogic_epi64(low, high, mask, 0xA8);  // (low | high) & mask
    if (n >= 8) {
      _mm512_storeu_si512(out, words);
    } else {
      _mm512_mask_storeu_epi64(out, LowOnes(n), words);
    }
  }
}

}  // namespace internal
}  // namespace tfe_bench
