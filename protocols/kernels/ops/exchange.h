// What two evaluators exchange: packed words of a small ring, which each of them adds.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_EXCHANGE_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_EXCHANGE_H_

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {

// The sums mod 2^width of n words in two messages; refuses messages of another size.
class PackedSums {
 public:
  PackedSums(const Tensor& own, const Tensor& got, int64_t n, int width)
      : n_(n), width_(width), own_(Bytes(own)), got_(Bytes(got)) {
    Require(own.NumElements() == PackedBytes(n, width) && got.NumElements() == own.NumElements(),
            "TfeBench: two messages do not have the size of their sum");
  }

  // fn(first, sums, count) for chunks of the words.
  template <typename Fn>
  void ForEachChunk(OpKernelContext* context, Fn fn) const {
    Chunks(context, n_, 6, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t sums[kChunk], got[kChunk];
      UnpackRange(own_ + first * width_ / 8, count, width_, sums, 0, count);
      UnpackRange(got_ + first * width_ / 8, count, width_, got, 0, count);
      const uint64_t ring = LowBits(width_);
      for (int64_t i = 0; i < count; ++i) sums[i] = (sums[i] + got[i]) & ring;
      fn(first, sums, count);
    });
  }

 private:
  const int64_t n_;
  const int width_;
  const uint8_t *own_, *got_;
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_EXCHANGE_H_
