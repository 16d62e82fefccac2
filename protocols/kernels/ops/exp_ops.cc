// Kernels around core/modular.h: exponentials of masked values.
#include <algorithm>

#include "protocols/kernels/core/modular.h"
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

constexpr int64_t kPerShard = 256;  // their pads fit the first-level cache
constexpr int kShareWords = 4;      // of a residue modulo 2^256 + 1

// The messages and shares are flat: the elements' shape is the caller's business.
absl::Status Vectors(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, c->Vector(InferenceContext::kUnknownDim));
  }
  return absl::OkStatus();
}

#define EXP_ATTRS              \
  Attr("site: int")            \
      .Attr("tensor: int")     \
      .Attr("dealer: int")     \
      .Attr("key: int")        \
      .Attr("form: {'one-round', 'prime'}") \
      .Attr("limbs: int")      \
      .Attr("factor: list(int)") \
      .Attr("offset: int")     \
      .Attr("mantissa: int")   \
      .Attr("drop: int")       \
      .Attr("point: int")

// The dealer's factor 2^offset exp(-(l1 + l2)), less the pad: what it sends to E2.
REGISTER_OP("TfeBench>ExpDeal")
    .Input("call: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Output("message: int64")
    .EXP_ATTRS.SetShapeFn(Vectors);

// An evaluator's additive share of the exponential.  E1 makes its share of the dealer's factor from
// the PRF (`dealt` is empty), E2 has received it.  `low` is empty in the one-round form.
REGISTER_OP("TfeBench>ExpShare")
    .Input("call: int64")
    .Input("m: int64")
    .Input("dealt: int64")
    .Output("y: int64")
    .Output("low: int64")
    .Attr("second: bool")
    .EXP_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      c->set_output(1, c->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

class ExpOp : public Kernel {
 public:
  explicit ExpOp(OpKernelConstruction* c) : Kernel(c), mask_(c) {
    std::string form;
    std::vector<int64_t> factor;
    OP_REQUIRES_OK(c, c->GetAttr("form", &form));
    OP_REQUIRES_OK(c, c->GetAttr("factor", &factor));
    OP_REQUIRES_OK(c, c->GetAttr("limbs", &p_.limbs));
    OP_REQUIRES_OK(c, c->GetAttr("offset", &p_.offset));
    OP_REQUIRES_OK(c, c->GetAttr("mantissa", &p_.mantissa));
    OP_REQUIRES_OK(c, c->GetAttr("drop", &p_.drop));
    OP_REQUIRES_OK(c, c->GetAttr("point", &p_.point));
    prime_ = form == "prime";
    const int ring = 64 * p_.limbs;
    OP_REQUIRES(c,
                (p_.limbs == 1 || p_.limbs == 2) && factor.size() == 2 && p_.offset >= 0 &&
                    p_.offset < 512 && p_.mantissa > 0 && p_.mantissa < 61 && p_.drop >= 0 &&
                    p_.drop < (prime_ ? ring - 3 : 257) &&
                    (!prime_ || (p_.point > 0 && p_.point < ring - 1)) &&
                    (!prime_ || p_.mantissa <= 32),
                absl::InvalidArgumentError("the exponential's parameters do not fit each other"));
    p_.factor[0] = static_cast<uint64_t>(factor[0]);
    p_.factor[1] = static_cast<uint64_t>(factor[1]);
    pad_words_ = prime_ ? p_.limbs : kShareWords;
  }

 protected:
  // fn(pad, begin, end) for runs of elements; pad is indexed like a whole tensor.
  template <typename Fn>
  void WithPads(OpKernelContext* context, const Call& call, const PrfStream& stream, int64_t n,
                Fn fn) {
    const int64_t shards = (n + kPerShard - 1) / kPerShard;
    ParallelRange(context, shards, 200 * kPerShard, [&](int64_t first, int64_t last) {
      alignas(64) uint64_t pad[kPerShard * kShareWords];
      for (int64_t s = first; s < last; ++s) {
        const int64_t begin = s * kPerShard, end = std::min(n, begin + kPerShard);
        const int64_t words = (end - begin) * pad_words_;
        FillMask(*call.session, stream, begin * pad_words_ / 2, (words + 1) / 2,
                 reinterpret_cast<uint8_t*>(pad));
        fn(pad, begin, end);
      }
    });
  }

  MaskAttrs mask_;
  ExpParameters p_;
  bool prime_;
  int pad_words_;
};

class ExpDealOp : public ExpOp {
 public:
  explicit ExpDealOp(OpKernelConstruction* c) : ExpOp(c) {}

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Tensor &l1 = context->input(1), &l2 = context->input(2);
    OP_REQUIRES(context, l1.shape() == l2.shape() && l1.NumElements() % p_.limbs == 0,
                absl::InvalidArgumentError("ExpDeal wants two tensors of one shape"));
    const int64_t n = l1.NumElements() / p_.limbs;
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n * pad_words_}, &out));
    if (n == 0) return;
    PrfStream stream;
    OP_REQUIRES_OK(context, mask_.Stream(call, n * pad_words_ * 8, &stream));
    uint64_t* message = Words(out);
    const auto deal = prime_ ? PrimeDealRange : ExpDealRange;
    WithPads(context, call, stream, n, [&](const uint64_t* pad, int64_t begin, int64_t end) {
      deal(p_, Words(l1) + begin * p_.limbs, Words(l2) + begin * p_.limbs, pad,
           message + begin * pad_words_, 0, end - begin);
    });
    call.session->Record(stream, kMasked, message, n * pad_words_ * 8);
  }
};

class ExpShareOp : public ExpOp {
 public:
  explicit ExpShareOp(OpKernelConstruction* c) : ExpOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("second", &second_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Tensor &m = context->input(1), &dealt = context->input(2);
    const int64_t n = m.NumElements() / p_.limbs;
    OP_REQUIRES(context,
                m.NumElements() == n * p_.limbs &&
                    dealt.NumElements() == (second_ ? n * pad_words_ : 0),
                absl::InvalidArgumentError("ExpShare: the dealt words do not fit the elements"));
    Tensor *out, *bits;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &out));
    OP_REQUIRES_OK(context, Allocate(context, 1, {prime_ ? n : 0}, &bits));
    if (n == 0) return;
    uint64_t *y = Words(out), *low = Words(bits);
    const auto work = [&](const uint64_t* share, int64_t begin, int64_t end) {
      const uint64_t* own = Words(m) + begin * p_.limbs;
      if (prime_) {
        PrimeShareRange(p_, own, share, second_, y + begin * p_.limbs, low + begin, 0, end - begin);
      } else {
        ExpShareRange(p_, own, share, second_, y + begin * p_.limbs, 0, end - begin);
      }
    };
    if (second_) {
      ParallelRange(context, n, 200, [&](int64_t begin, int64_t end) {
        work(Words(dealt) + begin * pad_words_, begin, end);
      });
      return;
    }
    PrfStream stream;
    OP_REQUIRES_OK(context, mask_.Stream(call, n * pad_words_ * 8, &stream));
    WithPads(context, call, stream, n, work);
    if (call.session->recording()) {
      std::vector<uint64_t> pad((n * pad_words_ + 1) / 2 * 2);
      FillMask(*call.session, stream, 0, pad.size() / 2, reinterpret_cast<uint8_t*>(pad.data()));
      call.session->Record(stream, kShare, pad.data(), n * pad_words_ * 8);
    }
  }

 private:
  bool second_;
};

REGISTER_KERNEL_BUILDER(Name("TfeBench>ExpDeal").Device(tensorflow::DEVICE_CPU), ExpDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>ExpShare").Device(tensorflow::DEVICE_CPU), ExpShareOp);

}  // namespace
}  // namespace tfe_bench
