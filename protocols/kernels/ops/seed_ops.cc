// What a seed stands for: a client draws one for each mask that it shares an input under.
#include <algorithm>
#include <cstring>

#include "protocols/kernels/core/aes_ctr.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {
namespace {

class ExpandSeedOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override {
    const Tensor& seed = context->input(0);
    Require(seed.NumElements() == 16, "ExpandSeed expects a seed of 16 bytes");
    const TensorShape shape = ShapeFrom(context->input(1));
    const int64_t n = shape.num_elements();
    uint64_t* words = Words(Allocate(context, 0, shape));
    AesKey key;
    ExpandAesKey(Bytes(seed), &key);
    ParallelRange(context, n / 2, 6, [&](int64_t begin, int64_t end) {
      AesKeystream(key, begin, end - begin, reinterpret_cast<uint8_t*>(words + 2 * begin));
    });
    if (n % 2) {
      uint64_t block[2];
      AesKeystream(key, n / 2, 1, reinterpret_cast<uint8_t*>(block));
      words[n - 1] = block[0];
    }
  }
};

// The words of cluster/seeds.py's `expand`, in a shape.
TFE_BENCH_OP("ExpandSeed", ExpandSeedOp,
    "seed: uint8, shape: int64 -> words: int64", "", ShapeFromInput<1>);

}  // namespace
}  // namespace tfe_bench
