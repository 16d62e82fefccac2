// What ops that take a sum of tensors and of seeds' streams read of their inputs.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_COMBINATION_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_COMBINATION_H_

#include <vector>

#include "protocols/kernels/core/combine.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {

// The inputs `words` and `seeds`, each times its factor, and the last input, which is their shape.
inline Combination ReadCombination(OpKernelContext* context, const std::vector<int64_t>& factors,
                                   TensorShape* shape) {
  OpInputList words, seeds;
  Require(context->input_list("words", &words));
  Require(context->input_list("seeds", &seeds));
  Require(static_cast<int>(factors.size()) == words.size() + seeds.size(),
          "Combine expects a factor for each tensor and seed");
  *shape = ShapeFrom(context->input(context->num_inputs() - 1));
  Combination sum;
  auto factor = factors.begin();
  for (const Tensor& x : words) {
    Require(x.shape() == *shape, "Combine expects one shape");
    sum.AddWords(*factor++, Words(x));
  }
  for (const Tensor& seed : seeds) {
    Require(seed.NumElements() == 16, "TfeBench: a seed has 16 bytes");
    sum.AddStream(*factor++, Bytes(seed));
  }
  return sum;
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_COMBINATION_H_
