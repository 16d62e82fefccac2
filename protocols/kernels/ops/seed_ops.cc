// What a seed stands for: a client draws one for each mask that it shares an input under.
#include <algorithm>
#include <vector>

#include "protocols/kernels/core/aes_ctr.h"
#include "protocols/kernels/core/gemm.h"
#include "protocols/kernels/ops/combination.h"

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
    TensorShape shape;
    const Combination sum = ReadCombination(context, factors_, &shape);
    uint64_t* to = Words(Allocate(context, 0, shape));
    ParallelRange(context, shape.num_elements(), 2 * factors_.size() + 1,
                  [&](int64_t begin, int64_t end) { sum.Fill(begin, end - begin, to + begin); });
  }

 private:
  std::vector<int64_t> factors_;
};

// A matrix product whose right factor is such a sum: its words are computed where they are multiplied.
class MatMulCombinedOp : public Kernel {
 public:
  explicit MatMulCombinedOp(OpKernelConstruction* c) : Kernel(c), bits_(WidthAttr(c, "bits")) {
    ReadAttrs(c, "factors", &factors_);
  }

  void Work(OpKernelContext* context) override {
    TensorShape right;
    const Combination sum = ReadCombination(context, factors_, &right);
    const Tensor& a = context->input(0);
    TensorShape shape = a.shape();
    Require(shape.dims() >= 2 && right.dims() == 2 &&
                shape.dim_size(shape.dims() - 1) == right.dim_size(0),
            "MatMulCombined: the shapes do not fit each other");
    const int64_t k = right.dim_size(0), n = right.dim_size(1);
    shape.RemoveLastDims(1);
    const int64_t rows = shape.num_elements();
    std::vector<int64_t> dims;
    for (const int64_t size : shape.dim_sizes()) dims.push_back(size);
    dims.push_back(n);
    uint64_t* c = Words(Allocate(context, 0, ShapeOf(dims)));
    Gemm(bits_, rows, n, k, Words(a), k,
         [&sum](int64_t first, int64_t count, uint64_t* out) { sum.Fill(first, count, out); }, c, n,
         false, ParallelIn(context));
  }

 private:
  const int bits_;
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

absl::Status MatMulCombinedShape(InferenceContext* c) {
  ShapeHandle rows, right;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 2, &rows));
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(c->num_inputs() - 1, &right));
  TF_RETURN_IF_ERROR(c->WithRank(right, 2, &right));
  TF_RETURN_IF_ERROR(c->Subshape(rows, 0, -1, &rows));
  TF_RETURN_IF_ERROR(c->Concatenate(rows, c->Vector(c->Dim(right, 1)), &rows));
  c->set_output(0, rows);
  return absl::OkStatus();
}

// a times the sum of the shape [k, n] that Combine would give: the low `bits` bits are right.
TFE_BENCH_OP("MatMulCombined", MatMulCombinedOp,
    "a: int64, words: N * int64, seeds: S * uint8, shape: int64 -> c: int64",
    "N: int >= 0; S: int >= 0; factors: list(int); bits: int", MatMulCombinedShape);

}  // namespace
}  // namespace tfe_bench
