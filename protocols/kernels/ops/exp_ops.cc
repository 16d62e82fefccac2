// Kernels around core/modular.h: exponentials of masked values.
#include <string>
#include <vector>

#include "protocols/kernels/core/modular.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::shape_inference::InferenceContext;

constexpr int kShareWords = 4;  // of a residue modulo 2^256 + 1

// The messages and shares are flat: the elements' shape is the caller's business.
#define EXP_ATTRS                                   \
  MASK_ATTRS.Attr("form: {'one-round', 'prime'}")   \
      .Attr("limbs: int")                           \
      .Attr("factor: list(int)")                    \
      .Attr("offset: int")                          \
      .Attr("mantissa: int")                        \
      .Attr("drop: int")                            \
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
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class ExpOp : public RecordsOp {
 public:
  explicit ExpOp(OpKernelConstruction* c) : RecordsOp(c) {
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
  ExpParameters p_;
  bool prime_;
  int pad_words_;
};

class ExpDealOp : public ExpOp {
 public:
  using ExpOp::ExpOp;

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor &l1 = context->input(1), &l2 = context->input(2);
    OP_REQUIRES(context, l1.shape() == l2.shape() && l1.NumElements() % p_.limbs == 0,
                absl::InvalidArgumentError("ExpDeal wants two tensors of one shape"));
    const int64_t n = l1.NumElements() / p_.limbs;
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n * pad_words_}, &out));
    if (n == 0) return;
    uint64_t* message = Words(out);
    const auto deal = [&](const uint64_t* pad, int64_t begin, int64_t end) {
      (prime_ ? PrimeDealRange : ExpDealRange)(
          p_, Words(l1) + begin * p_.limbs, Words(l2) + begin * p_.limbs, pad,
          message + begin * pad_words_, 0, end - begin);
    };
    OP_REQUIRES_OK(context, Deal(context, call, n, pad_words_, 200, message, deal));
  }
};

class ExpShareOp : public ExpOp {
 public:
  explicit ExpShareOp(OpKernelConstruction* c) : ExpOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("second", &second_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
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
    OP_REQUIRES_OK(context, Share(context, call, n, pad_words_, 200, dealt, second_, work));
  }

 private:
  bool second_;
};

REGISTER_CPU("ExpDeal", ExpDealOp);
REGISTER_CPU("ExpShare", ExpShareOp);

}  // namespace
}  // namespace tfe_bench
