// Sums of arrays and of seeds' streams, each times a small integer, computed where they are used.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_COMBINE_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_COMBINE_H_

#include <cstdint>
#include <vector>

#include "protocols/kernels/core/aes_ctr.h"

namespace tfe_bench {

class Combination {
 public:
  // The words must outlive the sum.
  void AddWords(int64_t factor, const uint64_t* words);
  // The stream of a seed of 16 bytes: the words of cluster/seeds.py's `expand`.
  void AddStream(int64_t factor, const uint8_t* seed);
  // Words [first, first + count) of the sum. Several threads may fill at the same time.
  void Fill(int64_t first, int64_t count, uint64_t* out) const;

 private:
  struct Term {
    uint64_t factor;
    const uint64_t* words;  // null: a stream
    AesKey key;
  };
  std::vector<Term> terms_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_COMBINE_H_
