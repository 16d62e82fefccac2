#include <immintrin.h>

#include "protocols/kernels/core/aes_ctr.h"

namespace tfe_bench {
namespace internal {
namespace {

constexpr int kRounds = 10;

// One step of the FIPS-197 key schedule; `assist` is AESKEYGENASSIST of `key`.
inline __m128i NextRoundKey(__m128i key, __m128i assist) {
  assist = _mm_shuffle_epi32(assist, 0xff);
  key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
  key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
  return _mm_xor_si128(key, assist);
}

inline __m128i RoundKey(const AesKey& key, int round) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(key.round_keys) + round);
}

inline __m128i Encrypt(const AesKey& key, __m128i state) {
  state = _mm_xor_si128(state, RoundKey(key, 0));
  for (int r = 1; r < kRounds; ++r) state = _mm_aesenc_si128(state, RoundKey(key, r));
  return _mm_aesenclast_si128(state, RoundKey(key, kRounds));
}

// A counter in the byte order of AES: the register as it is, or with its bytes reversed.
template <bool kBigEndian>
inline __m128i Block(__m128i counter) {
  if (!kBigEndian) return counter;
  return _mm_shuffle_epi8(counter,
                          _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

template <bool kBigEndian>
void Ctr(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out) {
  constexpr int kInFlight = 8;  // covers the latency of AESENC on every CPU that has it
  __m128i* dst = reinterpret_cast<__m128i*>(out);
  __m128i counter = _mm_set_epi64x(static_cast<int64_t>(hi), static_cast<int64_t>(lo));
  const __m128i one = _mm_set_epi64x(0, 1);
  for (; blocks >= kInFlight; blocks -= kInFlight, dst += kInFlight) {
    __m128i state[kInFlight];
    const __m128i first = RoundKey(key, 0);
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) {
      state[i] = _mm_xor_si128(Block<kBigEndian>(counter), first);
      counter = _mm_add_epi64(counter, one);
    }
#pragma GCC unroll 10
    for (int r = 1; r < kRounds; ++r) {
      const __m128i round_key = RoundKey(key, r);
#pragma GCC unroll 8
      for (int i = 0; i < kInFlight; ++i) state[i] = _mm_aesenc_si128(state[i], round_key);
    }
    const __m128i last = RoundKey(key, kRounds);
#pragma GCC unroll 8
    for (int i = 0; i < kInFlight; ++i) {
      _mm_storeu_si128(dst + i, _mm_aesenclast_si128(state[i], last));
    }
  }
  for (; blocks > 0; --blocks, ++dst) {
    _mm_storeu_si128(dst, Encrypt(key, Block<kBigEndian>(counter)));
    counter = _mm_add_epi64(counter, one);
  }
}

}  // namespace

void ExpandAesKeyAesni(const uint8_t key[16], AesKey* out) {
  __m128i* keys = reinterpret_cast<__m128i*>(out->round_keys);
  __m128i k = _mm_loadu_si128(reinterpret_cast<const __m128i*>(key));
  _mm_store_si128(keys, k);
  // The round constant is an immediate, hence a macro and not a loop.
#define TFE_BENCH_ROUND(i, constant)                           \
  k = NextRoundKey(k, _mm_aeskeygenassist_si128(k, constant)); \
  _mm_store_si128(keys + i, k)
  TFE_BENCH_ROUND(1, 0x01);
  TFE_BENCH_ROUND(2, 0x02);
  TFE_BENCH_ROUND(3, 0x04);
  TFE_BENCH_ROUND(4, 0x08);
  TFE_BENCH_ROUND(5, 0x10);
  TFE_BENCH_ROUND(6, 0x20);
  TFE_BENCH_ROUND(7, 0x40);
  TFE_BENCH_ROUND(8, 0x80);
  TFE_BENCH_ROUND(9, 0x1b);
  TFE_BENCH_ROUND(10, 0x36);
#undef TFE_BENCH_ROUND
}

void AesEncryptBlockAesni(const AesKey& key, const uint8_t in[16], uint8_t out[16]) {
  const __m128i state = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), Encrypt(key, state));
}

void AesCtrAesni(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out) {
  Ctr<false>(key, hi, lo, blocks, out);
}

void AesKeystreamAesni(const AesKey& key, uint64_t first, uint64_t blocks, uint8_t* out) {
  Ctr<true>(key, 0, first, blocks, out);
}

}  // namespace internal
}  // namespace tfe_bench
