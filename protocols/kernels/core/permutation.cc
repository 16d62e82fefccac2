#include "protocols/kernels/core/permutation.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tfe_bench {
namespace {

// Consecutive little-endian 32-bit words of the AES-CTR stream. How many are fetched at a time
// does not change the sequence.
class WordStream {
 public:
  WordStream(const AesKey& key, uint64_t hi, uint64_t lo, int64_t expected_words)
      : key_(key), hi_(hi), lo_(lo), expected_(expected_words) {}

  // Uniform in [0, range), range >= 1 (Lemire, "Fast random integer generation in an interval",
  // ACM TOMACS 2019). The branch reveals only that a word was thrown away.
  uint32_t Below(uint32_t range) {
    for (;;) {
      const uint64_t product = static_cast<uint64_t>(Next()) * range;
      const uint32_t low = static_cast<uint32_t>(product);
      // (2^32 - range) % range < range: the division is needed only when low < range.
      if (low >= range || low >= (0u - range) % range) return static_cast<uint32_t>(product >> 32);
    }
  }

 private:
  static constexpr int64_t kWords = 1024;

  uint32_t Next() {
    if (next_ == end_) Refill();
    return words_[next_++];
  }

  void Refill() {
    const int64_t wanted = std::min(kWords, std::max<int64_t>(expected_, 4));
    const int64_t blocks = (wanted + 3) / 4;
    AesCtr(key_, hi_, lo_, static_cast<uint64_t>(blocks), reinterpret_cast<uint8_t*>(words_));
    lo_ += static_cast<uint64_t>(blocks);
    next_ = 0;
    end_ = 4 * blocks;
    expected_ -= end_;
  }

  const AesKey& key_;
  const uint64_t hi_;
  uint64_t lo_;
  int64_t expected_;
  int64_t next_ = 0;
  int64_t end_ = 0;
  alignas(64) uint32_t words_[kWords];
};

// A fixed size lets memcpy become one or two vector moves.
template <int64_t kBytes>
void ApplyFixed(const int32_t* perm, int64_t n, const char* in, char* out) {
  constexpr int64_t kAhead = 32;
  int64_t i = 0;
  for (; i + kAhead < n; ++i) {
    __builtin_prefetch(in + perm[i + kAhead] * kBytes);
    std::memcpy(out + i * kBytes, in + perm[i] * kBytes, kBytes);
  }
  for (; i < n; ++i) std::memcpy(out + i * kBytes, in + perm[i] * kBytes, kBytes);
}

}  // namespace

void RandomPermutation(const AesKey& key, uint64_t hi, uint64_t lo, int64_t n, int32_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<int32_t>(i);
  WordStream words(key, hi, lo, n);
  // Draw a batch of swap targets before swapping: the prefetches hide the cache misses.
  constexpr int64_t kBatch = 64;
  uint32_t target[kBatch];
  for (int64_t last = n - 1; last > 0;) {
    const int64_t batch = std::min(kBatch, last);
    for (int64_t b = 0; b < batch; ++b) {
      target[b] = words.Below(static_cast<uint32_t>(last - b + 1));
      __builtin_prefetch(out + target[b], 1);
    }
    for (int64_t b = 0; b < batch; ++b) std::swap(out[last - b], out[target[b]]);
    last -= batch;
  }
}

void ApplyPermutation(const int32_t* perm, int64_t n, int64_t row_bytes, const void* in,
                      void* out) {
  const char* src = static_cast<const char*>(in);
  char* dst = static_cast<char*>(out);
  switch (row_bytes) {
    case 8:
      return ApplyFixed<8>(perm, n, src, dst);
    case 16:
      return ApplyFixed<16>(perm, n, src, dst);
    case 24:
      return ApplyFixed<24>(perm, n, src, dst);
    case 32:
      return ApplyFixed<32>(perm, n, src, dst);
    default:
      for (int64_t i = 0; i < n; ++i) {
        std::memcpy(dst + i * row_bytes, src + perm[i] * row_bytes,
                    static_cast<size_t>(row_bytes));
      }
  }
}

}  // namespace tfe_bench
