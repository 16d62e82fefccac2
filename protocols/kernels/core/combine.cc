#include "protocols/kernels/core/combine.h"

#include <algorithm>

#include "protocols/kernels/core/per_isa.h"

namespace tfe_bench {
namespace {

constexpr int64_t kChunk = 512;  // words that stay in the first-level cache

TFE_BENCH_INLINE inline void AddMultiple(uint64_t* out, const uint64_t* from, uint64_t factor,
                                         int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] += factor * from[i];
}

TFE_BENCH_PER_ISA(AddMultiple,
                  (uint64_t * out, const uint64_t* from, uint64_t factor, int64_t count),
                  (out, from, factor, count))

}  // namespace

void Combination::AddWords(int64_t factor, const uint64_t* words) {
  terms_.push_back({static_cast<uint64_t>(factor), words, {}});
}

void Combination::AddStream(int64_t factor, const uint8_t* seed) {
  terms_.push_back({static_cast<uint64_t>(factor), nullptr, {}});
  ExpandAesKey(seed, &terms_.back().key);
}

void Combination::Fill(int64_t first, int64_t count, uint64_t* out) const {
  static const auto add = ChooseAddMultiple();
  for (int64_t end = first + count; first < end; first += kChunk, out += kChunk) {
    // A block of a stream is two words.
    alignas(64) uint64_t stream[kChunk + 2];
    const int64_t words = std::min(kChunk, end - first), odd = first % 2;
    std::fill(out, out + words, 0);
    for (const Term& term : terms_) {
      if (term.words == nullptr) {
        AesKeystream(term.key, static_cast<uint64_t>(first / 2),
                     static_cast<uint64_t>((odd + words + 1) / 2),
                     reinterpret_cast<uint8_t*>(stream));
      }
      add(out, term.words == nullptr ? stream + odd : term.words + first, term.factor, words);
    }
  }
}

}  // namespace tfe_bench
