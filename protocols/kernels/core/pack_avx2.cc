#include <immintrin.h>

#include "protocols/kernels/core/pack.h"

namespace tfe_bench {
namespace internal {

// Two words at a time in 16 bytes: the bytes of each into a lane of 64 bits, then a shift.
void UnpackAvx2(const uint8_t* packed, int64_t n, int width, uint64_t* out) {
  constexpr int kWidest = 57;  // with the up to 7 bits before it, a word lies in 8 bytes
  int64_t done = 0;
  if (width <= kWidest) {
    const int64_t second = width / 4, third = width / 2, fourth = 3 * width / 4;  // pair, its byte
    alignas(32) uint64_t bytes[8], shift[8];
    for (int i = 0; i < 8; ++i) {
      const int bit = 2 * width * (i / 2) % 8 + width * (i % 2);
      bytes[i] = 0x0706050403020100 + bit / 8 * 0x0101010101010101;
      shift[i] = bit % 8;
    }
    const auto Load = [](const uint8_t* low, const uint8_t* high) {
      return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(high),
                                 reinterpret_cast<const __m128i*>(low));
    };
    const auto Constants = [](const uint64_t* words) {
      return _mm256_load_si256(reinterpret_cast<const __m256i*>(words));
    };
    const __m256i bytes0 = Constants(bytes), bytes1 = Constants(bytes + 4);
    const __m256i shift0 = Constants(shift), shift1 = Constants(shift + 4);
    const __m256i mask = _mm256_set1_epi64x((int64_t{1} << width) - 1);
    const auto Store = [mask](uint64_t* to, __m256i v, __m256i order, __m256i by) {
      v = _mm256_srlv_epi64(_mm256_shuffle_epi8(v, order), by);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_and_si256(v, mask));
    };
    const uint8_t* const last = packed + PackedBytes(n, width);
    for (; done + 8 <= n && last - packed >= fourth + 16; done += 8, packed += width) {
      Store(out + done, Load(packed, packed + second), bytes0, shift0);
      Store(out + done + 4, Load(packed + third, packed + fourth), bytes1, shift1);
    }
  }
  UnpackPortable(packed, n - done, width, out + done);
}

}  // namespace internal
}  // namespace tfe_bench
