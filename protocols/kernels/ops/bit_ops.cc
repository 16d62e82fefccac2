// Logic on packed private bits: repacking, and the AND of up to 9 bits in one round.
//
// With b_j = o_j ^ beta_j, AND_j b_j is the XOR over all subsets T of AND_{j not in T} o_j times
// AND_{j in T} beta_j, so D deals one bit per non-empty subset (ABY2.0, Patra et al., USENIX
// Security 2021: multi-input AND).
#include <algorithm>
#include <memory>
#include <vector>

#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int kMostBits = 9;
constexpr int64_t kBlock = 64;  // words at a time

// beta [r, words] -> the message [2^r - 1, words] for E2.
REGISTER_OP("TfeBench>AndDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Output("message: int64")
    .Attr("site: int")
    .Attr("tensor: int")
    .Attr("dealer: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->UnknownShapeOfRank(2));
      return absl::OkStatus();
    });

// opened [r, words] and the message (empty at E1) -> this evaluator's share [words].
REGISTER_OP("TfeBench>AndShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("dealt: int64")
    .Output("share: int64")
    .Attr("site: int")
    .Attr("tensor: int")
    .Attr("dealer: int")
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

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

class AndOp : public Kernel {
 public:
  explicit AndOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("site", &site_));
    OP_REQUIRES_OK(c, c->GetAttr("tensor", &tensor_));
    OP_REQUIRES_OK(c, c->GetAttr("dealer", &dealer_));
  }

 protected:
  absl::Status Start(OpKernelContext* context, Call* call, PrfStream* stream) {
    TF_RETURN_IF_ERROR(FindCall(context, call));
    const Tensor& planes = context->input(1);
    if (planes.dims() != 2 || planes.dim_size(0) < 1 || planes.dim_size(0) > kMostBits) {
      return absl::InvalidArgumentError("an AND takes 1 to 9 rows of packed bits");
    }
    const int64_t subsets = (int64_t{1} << planes.dim_size(0)) - 1;
    return ToStatus(call->session->Stream(kK1, dealer_, site_, call->step, call->iteration,
                                          tensor_, subsets * Stride(planes.dim_size(1)) * 8,
                                          stream));
  }
  // Each row of the stream begins with a new block.
  static int64_t Stride(int64_t words) { return (words + 1) / 2 * 2; }

  int site_, tensor_, dealer_;
};

class AndDealOp : public AndOp {
 public:
  using AndOp::AndOp;
  void Work(OpKernelContext* context) override {
    Call call;
    PrfStream stream;
    OP_REQUIRES_OK(context, Start(context, &call, &stream));
    OP_REQUIRES(context, call.session->RoleOf(dealer_) == kDealer,
                absl::InternalError("only the dealer deals"));
    const Tensor& beta = context->input(1);
    const int r = static_cast<int>(beta.dim_size(0));
    const int64_t words = beta.dim_size(1), subsets = (int64_t{1} << r) - 1;
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {subsets, words}, &out));
    const uint64_t* b = Words(beta);
    uint64_t* to = Words(out);
    const int64_t blocks = (words + kBlock - 1) / kBlock;
    ParallelRange(context, blocks, subsets * kBlock * 2, [&](int64_t begin, int64_t end) {
      std::unique_ptr<uint64_t[]> product(new uint64_t[(subsets + 1) * kBlock]);
      alignas(64) uint64_t mask[kBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, count = std::min(kBlock, words - first);
        for (int64_t i = 0; i < count; ++i) product[i] = ~uint64_t{0};
        for (int j = 0; j < r; ++j) {
          for (int64_t t = 0; t < (int64_t{1} << j); ++t) {
            for (int64_t i = 0; i < count; ++i) {
              product[((int64_t{1} << j) + t) * kBlock + i] =
                  product[t * kBlock + i] & b[j * words + first + i];
            }
          }
        }
        for (int64_t t = 1; t <= subsets; ++t) {
          FillMask(*call.session, stream, ((t - 1) * Stride(words) + first) / 2, (count + 1) / 2,
                   reinterpret_cast<uint8_t*>(mask));
          for (int64_t i = 0; i < count; ++i) {
            to[(t - 1) * words + first + i] = product[t * kBlock + i] ^ mask[i];
          }
        }
      }
    });
    call.session->Record(stream, kMasked, to, out->NumElements() * 8);
  }
};

class AndShareOp : public AndOp {
 public:
  using AndOp::AndOp;
  void Work(OpKernelContext* context) override {
    Call call;
    PrfStream stream;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Role role = call.session->RoleOf(dealer_);
    OP_REQUIRES(context, role != kDealer, absl::InternalError("the dealer has no share"));
    const Tensor &opened = context->input(1), &dealt = context->input(2);
    OP_REQUIRES(context, opened.dims() == 2 && opened.dim_size(0) >= 1 &&
                             opened.dim_size(0) <= kMostBits,
                absl::InvalidArgumentError("an AND takes 1 to 9 rows of packed bits"));
    const int r = static_cast<int>(opened.dim_size(0));
    const int64_t words = opened.dim_size(1), subsets = (int64_t{1} << r) - 1;
    if (role == kE1) OP_REQUIRES_OK(context, Start(context, &call, &stream));
    OP_REQUIRES(context, role == kE1 || dealt.NumElements() == subsets * words,
                absl::InvalidArgumentError("AndShare: the message has the wrong size"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {words}, &out));
    const uint64_t *o = Words(opened), *from = Words(dealt);
    uint64_t* share = Words(out);
    const int64_t blocks = (words + kBlock - 1) / kBlock;
    ParallelRange(context, blocks, subsets * kBlock * 2, [&](int64_t begin, int64_t end) {
      // coefficient[T] = AND of the opened bits outside of T
      std::unique_ptr<uint64_t[]> coefficient(new uint64_t[(subsets + 1) * kBlock]);
      alignas(64) uint64_t mask[kBlock];
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, count = std::min(kBlock, words - first);
        for (int64_t i = 0; i < count; ++i) coefficient[i] = ~uint64_t{0};
        for (int j = 0; j < r; ++j) {
          for (int64_t t = 0; t < (int64_t{1} << j); ++t) {
            for (int64_t i = 0; i < count; ++i) {
              coefficient[((int64_t{1} << j) + t) * kBlock + i] = coefficient[t * kBlock + i];
              coefficient[t * kBlock + i] &= o[j * words + first + i];
            }
          }
        }
        for (int64_t i = 0; i < count; ++i) share[first + i] = role == kE1 ? coefficient[i] : 0;
        for (int64_t t = 1; t <= subsets; ++t) {
          const uint64_t* row = from + (t - 1) * words + first;
          if (role == kE1) {
            FillMask(*call.session, stream, ((t - 1) * Stride(words) + first) / 2,
                     (count + 1) / 2, reinterpret_cast<uint8_t*>(mask));
            row = mask;
          }
          for (int64_t i = 0; i < count; ++i) {
            share[first + i] ^= coefficient[t * kBlock + i] & row[i];
          }
        }
      }
    });
    if (role == kE1 && call.session->recording()) {
      std::vector<uint64_t> pad(subsets * Stride(words));
      FillMask(*call.session, stream, 0, pad.size() / 2, reinterpret_cast<uint8_t*>(pad.data()));
      call.session->Record(stream, kShare, pad.data(), pad.size() * 8);
    }
  }
};

class PackBitsOp : public Kernel {
 public:
  explicit PackBitsOp(OpKernelConstruction* c) : Kernel(c) {}
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

REGISTER_KERNEL_BUILDER(Name("TfeBench>AndDeal").Device(tensorflow::DEVICE_CPU), AndDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>AndShare").Device(tensorflow::DEVICE_CPU), AndShareOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>PackBits").Device(tensorflow::DEVICE_CPU), PackBitsOp);

}  // namespace
}  // namespace tfe_bench
