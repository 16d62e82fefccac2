// Kernels around core/exp_select.h: an exponential and a private bit's choice in one exchange.
#include <algorithm>
#include <vector>

#include "protocols/kernels/core/exp_select.h"
#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

constexpr int64_t kPerShard = 128;  // their pads fit the first-level cache

#define SELECT_ATTRS           \
  Attr("site: int")            \
      .Attr("tensor: int")     \
      .Attr("dealer: int")     \
      .Attr("key: int")        \
      .Attr("factor: int")     \
      .Attr("offset: int")     \
      .Attr("mantissa: int")   \
      .Attr("drop: int")

// The dealer's two factors of each element, less their pads: what it sends to E2.
REGISTER_OP("TfeBench>ExpSelectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Output("message: int64")
    .SELECT_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

// An evaluator's additive share.  E1 makes its share of the factors from the PRF (`dealt` is empty).
REGISTER_OP("TfeBench>ExpSelectShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("m: int64")
    .Input("dealt: int64")
    .Output("share: int64")
    .Attr("second: bool")
    .SELECT_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(2));
      return absl::OkStatus();
    });

class ExpSelectOp : public Kernel {
 public:
  explicit ExpSelectOp(OpKernelConstruction* c) : Kernel(c), mask_(c) {
    int64_t factor;
    OP_REQUIRES_OK(c, c->GetAttr("factor", &factor));
    OP_REQUIRES_OK(c, c->GetAttr("offset", &p_.offset));
    OP_REQUIRES_OK(c, c->GetAttr("mantissa", &p_.mantissa));
    OP_REQUIRES_OK(c, c->GetAttr("drop", &p_.drop));
    OP_REQUIRES(c,
                p_.offset >= 0 && p_.offset < 512 && p_.mantissa > 0 && p_.mantissa < 61 &&
                    p_.drop >= 0 && p_.drop < 257,
                absl::InvalidArgumentError("the exponential's parameters do not fit each other"));
    p_.limbs = 1;
    p_.factor[0] = static_cast<uint64_t>(factor);
    p_.factor[1] = 0;
    p_.point = 0;
  }

 protected:
  // fn(pad, begin, end) for runs of elements; pad is that of element begin and up.
  template <typename Fn>
  void WithPads(OpKernelContext* context, const Call& call, const PrfStream& stream, int64_t n,
                Fn fn) {
    const int64_t shards = (n + kPerShard - 1) / kPerShard;
    ParallelRange(context, shards, 400 * kPerShard, [&](int64_t first, int64_t last) {
      alignas(64) uint64_t pad[kPerShard * kSelectWords];
      for (int64_t s = first; s < last; ++s) {
        const int64_t begin = s * kPerShard, end = std::min(n, begin + kPerShard);
        FillMask(*call.session, stream, begin * kSelectWords / 2, (end - begin) * kSelectWords / 2,
                 reinterpret_cast<uint8_t*>(pad));
        fn(pad, begin, end);
      }
    });
  }

  MaskAttrs mask_;
  ExpParameters p_;
};

class ExpSelectDealOp : public ExpSelectOp {
 public:
  using ExpSelectOp::ExpSelectOp;

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3);
    const int64_t n = l1.NumElements();
    OP_REQUIRES(context, l2.NumElements() == n && beta.NumElements() == (n + 63) / 64,
                absl::InvalidArgumentError("ExpSelectDeal: the sizes do not fit"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n * kSelectWords}, &out));
    if (n == 0) return;
    PrfStream stream;
    OP_REQUIRES_OK(context, mask_.Stream(call, n * kSelectWords * 8, &stream));
    uint64_t* message = Words(out);
    WithPads(context, call, stream, n, [&](const uint64_t* pad, int64_t begin, int64_t end) {
      ExpSelectDealRange(p_, Words(beta), Words(l1) + begin, Words(l2) + begin, pad,
                         message + begin * kSelectWords, begin, end);
    });
    call.session->Record(stream, kMasked, message, n * kSelectWords * 8);
  }
};

class ExpSelectShareOp : public ExpSelectOp {
 public:
  explicit ExpSelectShareOp(OpKernelConstruction* c) : ExpSelectOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("second", &second_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Tensor &opened = context->input(1), &m = context->input(2), &dealt = context->input(3);
    const int64_t n = m.NumElements();
    OP_REQUIRES(context,
                opened.NumElements() == (n + 63) / 64 &&
                    dealt.NumElements() == (second_ ? n * kSelectWords : 0),
                absl::InvalidArgumentError("ExpSelectShare: the sizes do not fit"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &out));
    if (n == 0) return;
    uint64_t* y = Words(out);
    const auto work = [&](const uint64_t* given, int64_t begin, int64_t end) {
      uint64_t share[4 * kPerShard];
      ExpSelectRange(Words(opened), given, share, begin, end);
      ExpShareRange(p_, Words(m) + begin, share, second_, y + begin, 0, end - begin);
    };
    if (second_) {
      const int64_t shards = (n + kPerShard - 1) / kPerShard;
      ParallelRange(context, shards, 200 * kPerShard, [&](int64_t first, int64_t last) {
        for (int64_t s = first; s < last; ++s) {
          const int64_t begin = s * kPerShard;
          work(Words(dealt) + begin * kSelectWords, begin, std::min(n, begin + kPerShard));
        }
      });
      return;
    }
    PrfStream stream;
    OP_REQUIRES_OK(context, mask_.Stream(call, n * kSelectWords * 8, &stream));
    WithPads(context, call, stream, n, work);
    if (call.session->recording()) {
      std::vector<uint64_t> pad(n * kSelectWords);
      FillMask(*call.session, stream, 0, pad.size() / 2, reinterpret_cast<uint8_t*>(pad.data()));
      call.session->Record(stream, kShare, pad.data(), n * kSelectWords * 8);
    }
  }

 private:
  bool second_;
};

REGISTER_KERNEL_BUILDER(Name("TfeBench>ExpSelectDeal").Device(tensorflow::DEVICE_CPU),
                        ExpSelectDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>ExpSelectShare").Device(tensorflow::DEVICE_CPU),
                        ExpSelectShareOp);

}  // namespace
}  // namespace tfe_bench
