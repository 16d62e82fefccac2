// What a seed stands for: a client draws one for each mask that it shares an input under.
#include <algorithm>
#include <vector>

#include "protocols/kernels/core/aes_ctr.h"
#include "protocols/kernels/ops/kernel.h"

namespace tfe_bench {
namespace {

AesKey KeyFrom(const Tensor& seed) {
  Require(seed.NumElements() == 16, "TfeBench: a seed has 16 bytes");
  AesKey key;
  ExpandAesKey(Bytes(seed), &key);
  return key;
}

// Words [first, first + count) of a seed's stream; `first` must be even, and out has room for an even
// count.
void Stream(const AesKey& key, int64_t first, int64_t count, uint64_t* out) {
  AesKeystream(key, first / 2, (count + 1) / 2, reinterpret_cast<uint8_t*>(out));
}

class ExpandSeedOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override {
    const AesKey key = KeyFrom(context->input(0));
    const TensorShape shape = ShapeFrom(context->input(1));
    const int64_t n = shape.num_elements();
    uint64_t* words = Words(Allocate(context, 0, shape));
    ParallelRange(context, n / 2, 6, [&](int64_t begin, int64_t end) {
      Stream(key, 2 * begin, 2 * (end - begin), words + 2 * begin);
    });
    if (n % 2) {
      uint64_t block[2];
      Stream(key, n - 1, 1, block);
      words[n - 1] = block[0];
    }
  }
};

// A sum of tensors and of seeds' streams, each times a small integer.
class CombineOp : public Kernel {
 public:
  explicit CombineOp(OpKernelConstruction* c) : Kernel(c) { ReadAttrs(c, "factors", &factors_); }

  void Work(OpKernelContext* context) override {
    OpInputList words, seeds;
    Require(context->input_list("words", &words));
    Require(context->input_list("seeds", &seeds));
    Require(static_cast<int>(factors_.size()) == words.size() + seeds.size(),
            "Combine expects a factor for each tensor and seed");
    const TensorShape shape = ShapeFrom(context->input(words.size() + seeds.size()));
    const int64_t n = shape.num_elements();
    for (const Tensor& x : words) Require(x.shape() == shape, "Combine expects one shape");
    std::vector<AesKey> keys;
    for (const Tensor& seed : seeds) keys.push_back(KeyFrom(seed));
    uint64_t* sum = Words(Allocate(context, 0, shape));
    Chunks(context, n, 2 * words.size() + 4 * seeds.size(), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t part[kChunk];
      uint64_t* to = sum + first;
      std::fill(to, to + count, 0);
      for (size_t f = 0; f < factors_.size(); ++f) {
        const uint64_t factor = static_cast<uint64_t>(factors_[f]);
        const uint64_t* from = part;
        if (f < static_cast<size_t>(words.size())) {
          from = Words(words[f]) + first;
        } else {
          Stream(keys[f - words.size()], first, count, part);
        }
        for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
      }
    });
  }

 private:
  std::vector<int64_t> factors_;
};

// The words of cluster/seeds.py's `expand`, in a shape.
TFE_BENCH_OP("ExpandSeed", ExpandSeedOp,
    "seed: uint8, shape: int64 -> words: int64", "", ShapeFromInput<1>);

absl::Status CombineShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(c->num_inputs() - 1, &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

// factors: those of the tensors, then those of the seeds' streams.
TFE_BENCH_OP("Combine", CombineOp,
    "words: N * int64, seeds: S * uint8, shape: int64 -> sum: int64",
    "N: int >= 0; S: int >= 0; factors: list(int)", CombineShape);

}  // namespace
}  // namespace tfe_bench
