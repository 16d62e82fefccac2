#include <immintrin.h>

#include "protocols/kernels/core/aes_ctr.h"

namespace tfe_bench {
namespace internal {
namespace {

// Counters in the byte order of AES: the register as it is, or each with its bytes reversed.
template <bool kBigEndian>
inline __m512i Blocks(__m512i counters) {
  if (!kBigEndian) return counters;
  // (the masked form: see below)
  const __m512i turned = _mm512_maskz_broadcast_i32x4(
      0xffff, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  return _mm512_shuffle_epi8(counters, turned);
}

template <bool kBigEndian>
void Ctr(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out) {
  constexpr int kRounds = 10;
  constexpr int kInFlight = 8;  // registers of four blocks: 32 blocks hide the latency of VAESENC
  const int64_t h = static_cast<int64_t>(hi);
  const int64_t l = static_cast<int64_t>(lo);

  __m512i round_key[kRounds + 1];
#pragma GCC unroll 11
  for (int r = 0; r <= kRounds; ++r) {
    // The masked form with a full mask: GCC 12 warns about the undefined operand of the plain one.
    round_key[r] = _mm512_maskz_broadcast_i32x4(
        0xffff, _mm_load_si128(reinterpret_cast<const __m128i*>(key.round_keys) + r));
  }
  // Unsigned offsets added as vectors, so that a counter near 2^63 is no signed overflow.
  __m512i counter = _mm512_add_epi64(_mm512_set_epi64(h, l, h, l, h, l, h, l),
                                     _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0));
  const __m512i four = _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4);

  for (; blocks >= 4 * kInFlight; blocks -= 4 * kInFlight, out += 64 * kInFlight) {
    __m512i state[kInFlight];
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) {
      state[i] = _mm512_xor_si512(Blocks<kBigEndian>(counter), round_key[0]);
      counter = _mm512_add_epi64(counter, four);
    }
#pragma GCC unroll 10
    for (int r = 1; r < kRounds; ++r) {
#pragma GCC unroll 8
      for (int i = 0; i < kInFlight; ++i) {
        state[i] = _mm512_aesenc_epi128(state[i], round_key[r]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) {
      _mm512_storeu_si512(out + 64 * i, _mm512_aesenclast_epi128(state[i], round_key[kRounds]));
    }
  }

  while (blocks > 0) {
    const uint64_t now = blocks < 4 ? blocks : 4;
    __m512i state = _mm512_xor_si512(Blocks<kBigEndian>(counter), round_key[0]);
    counter = _mm512_add_epi64(counter, four);
#pragma GCC unroll 10
    for (int r = 1; r < kRounds; ++r) state = _mm512_aesenc_epi128(state, round_key[r]);
    state = _mm512_aesenclast_epi128(state, round_key[kRounds]);
    _mm512_mask_storeu_epi64(out, static_cast<__mmask8>((1u << (2 * now)) - 1), state);
    blocks -= now;
    out += 16 * now;
  }
}

}  // namespace

void AesCtrVaes(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out) {
  Ctr<false>(key, hi, lo, blocks, out);
}

void AesKeystreamVaes(const AesKey& key, uint64_t first, uint64_t blocks, uint8_t* out) {
  Ctr<true>(key, 0, first, blocks, out);
}

}  // namespace internal
}  // namespace tfe_bench
