// Logic on packed private bits: repacking, and the AND of up to 9 bits in one round.
//
// With b_j = o_j ^ beta_j, AND_j b_j is the XOR over all subsets T of AND_{j not in T} o_j times
// AND_{j in T} beta_j, so D deals one bit per non-empty subset (ABY2.0, Patra et al., USENIX
// Security 2021: multi-input AND).
#include <algorithm>
#include <memory>
#include <vector>

#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

constexpr int kMostBits = 9;
constexpr int64_t kBlock = 64;  // words at a time

// beta [r, words] -> the message [2^r - 1, words] for E2.
REGISTER_OP("TfeBench>AndDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Output("message: int64")
    .TENSOR_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShapeOfRank(2));
      return absl::OkStatus();
    });

// opened [r, words] and the message (empty at E1) -> this evaluator's share [words].
REGISTER_OP("TfeBench>AndShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("dealt: int64")
    .Output("share: int64")
    .TENSOR_ATTRS.SetShapeFn(Vectors);

// 0 and 1 [rows, n] -> packed words [rows, ceil(n / 64)].
REGISTER_OP("TfeBench>PackBits")
    .Input("bits: int64")
    .Output("words: int64")
    .SetShapeFn([](InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle bits;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 2, &bits));
      tensorflow::shape_inference::DimensionHandle words = c->UnknownDim();
      if (c->ValueKnown(c->Dim(bits, 1))) {
        const int64_t n = c->Value(c->Dim(bits, 1));
        TF_RETURN_IF_ERROR(CheckSizes({n}));
        words = c->MakeDim((n + 63) / 64);
      }
      c->set_output(0, c->Matrix(c->Dim(bits, 0), words));
      return absl::OkStatus();
    });

class AndOp : public FieldsOp {
 public:
  using FieldsOp::FieldsOp;

 protected:
  static absl::Status CheckRows(const Tensor& planes) {
    if (planes.dims() == 2 && planes.dim_size(0) >= 1 && planes.dim_size(0) <= kMostBits) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("an AND takes 1 to 9 rows of packed bits");
  }
  // One row for each subset but the empty one.
  static std::vector<Field> Subsets(int64_t subsets) { return {{64, subsets, true}}; }
  // fn(space for all subsets, first, count) for blocks of words.
  template <typename Fn>
  static void Blocks(OpKernelContext* context, int64_t words, int64_t subsets, Fn fn) {
    const int64_t blocks = (words + kBlock - 1) / kBlock;
    ParallelRange(context, blocks, subsets * kBlock * 2, [&](int64_t begin, int64_t end) {
      std::unique_ptr<uint64_t[]> space(new uint64_t[(subsets + 1) * kBlock]);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, count = std::min(kBlock, words - first);
        for (int64_t i = 0; i < count; ++i) space[i] = ~uint64_t{0};
        fn(space.get(), first, count);
      }
    });
  }
};

class AndDealOp : public AndOp {
 public:
  using AndOp::AndOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor& beta = context->input(1);
    OP_REQUIRES_OK(context, CheckRows(beta));
    const int r = static_cast<int>(beta.dim_size(0));
    const int64_t words = beta.dim_size(1), subsets = (int64_t{1} << r) - 1;
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {subsets, words}, &out));
    Fields message;
    OP_REQUIRES_OK(context, Write(call, Subsets(subsets), words, out, &message));
    const uint64_t* b = Words(beta);
    Blocks(context, words, subsets, [&](uint64_t* product, int64_t first, int64_t count) {
      for (int j = 0; j < r; ++j) {
        for (int64_t t = 0; t < (int64_t{1} << j); ++t) {
          for (int64_t i = 0; i < count; ++i) {
            product[((int64_t{1} << j) + t) * kBlock + i] =
                product[t * kBlock + i] & b[j * words + first + i];
          }
        }
      }
      for (int64_t t = 1; t <= subsets; ++t) {
        message.Put(0, t - 1, first, count, product + t * kBlock);
      }
    });
    message.Record();
  }
};

class AndShareOp : public AndOp {
 public:
  using AndOp::AndOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const Tensor& opened = context->input(1);
    OP_REQUIRES_OK(context, CheckRows(opened));
    const int r = static_cast<int>(opened.dim_size(0));
    const int64_t words = opened.dim_size(1), subsets = (int64_t{1} << r) - 1;
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, Subsets(subsets), words, context->input(2), &dealt));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {words}, &out));
    const uint64_t* o = Words(opened);
    uint64_t* share = Words(out);
    // coefficient[T] = AND of the opened bits outside of T
    Blocks(context, words, subsets, [&](uint64_t* coefficient, int64_t first, int64_t count) {
      alignas(64) uint64_t row[kBlock];
      for (int j = 0; j < r; ++j) {
        for (int64_t t = 0; t < (int64_t{1} << j); ++t) {
          for (int64_t i = 0; i < count; ++i) {
            coefficient[((int64_t{1} << j) + t) * kBlock + i] = coefficient[t * kBlock + i];
            coefficient[t * kBlock + i] &= o[j * words + first + i];
          }
        }
      }
      for (int64_t i = 0; i < count; ++i) share[first + i] = call.role == kE1 ? coefficient[i] : 0;
      for (int64_t t = 1; t <= subsets; ++t) {
        dealt.Get(0, t - 1, first, count, row);
        for (int64_t i = 0; i < count; ++i) {
          share[first + i] ^= coefficient[t * kBlock + i] & row[i];
        }
      }
    });
    dealt.Record();
  }
};

class PackBitsOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override {
    const Tensor& bits = context->input(0);
    OP_REQUIRES(context, bits.dims() == 2, absl::InvalidArgumentError("PackBits wants [rows, n]"));
    const int64_t rows = bits.dim_size(0), n = bits.dim_size(1), words = (n + 63) / 64;
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {rows, words}, &out));
    const uint64_t* from = Words(bits);
    uint64_t* to = Words(out);
    ParallelRange(context, rows * words, 64, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        const int64_t first = w % words * 64, count = std::min<int64_t>(64, n - first);
        const uint64_t* x = from + w / words * n + first;
        uint64_t word = 0;
        for (int64_t i = 0; i < count; ++i) word |= (x[i] & 1) << i;
        to[w] = word;
      }
    });
  }
};

REGISTER_CPU("AndDeal", AndDealOp);
REGISTER_CPU("AndShare", AndShareOp);
REGISTER_CPU("PackBits", PackBitsOp);

}  // namespace
}  // namespace tfe_bench
