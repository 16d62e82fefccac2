// Kernels around core/exp_select.h: an exponential and a private bit's choice in one exchange.
#include "protocols/kernels/core/exp_select.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

#define SELECT_ATTRS             \
  MASK_ATTRS.Attr("factor: int") \
      .Attr("offset: int")       \
      .Attr("mantissa: int")     \
      .Attr("drop: int")

// The dealer's two factors of each element, less their pads: what it sends to E2.
REGISTER_OP("TfeBench>ExpSelectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Output("message: int64")
    .SELECT_ATTRS.SetShapeFn(Vectors);

// An evaluator's additive share.  E1 makes its share of the factors from the PRF (`dealt` is empty).
REGISTER_OP("TfeBench>ExpSelectShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("m: int64")
    .Input("dealt: int64")
    .Output("share: int64")
    .Attr("second: bool")
    .SELECT_ATTRS.SetShapeFn(LikeInput<2>);

class ExpSelectOp : public RecordsOp {
 public:
  explicit ExpSelectOp(OpKernelConstruction* c) : RecordsOp(c) {
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
  ExpParameters p_;
};

class ExpSelectDealOp : public ExpSelectOp {
 public:
  using ExpSelectOp::ExpSelectOp;

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3);
    const int64_t n = l1.NumElements();
    OP_REQUIRES(context, l2.NumElements() == n && beta.NumElements() == (n + 63) / 64,
                absl::InvalidArgumentError("ExpSelectDeal: the sizes do not fit"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n * kSelectWords}, &out));
    if (n == 0) return;
    uint64_t* message = Words(out);
    const auto deal = [&](const uint64_t* pad, int64_t begin, int64_t end) {
      ExpSelectDealRange(p_, Words(beta), Words(l1) + begin, Words(l2) + begin, pad,
                         message + begin * kSelectWords, begin, end);
    };
    OP_REQUIRES_OK(context, Deal(context, call, n, kSelectWords, 400, message, deal));
  }
};

class ExpSelectShareOp : public ExpSelectOp {
 public:
  explicit ExpSelectShareOp(OpKernelConstruction* c) : ExpSelectOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("second", &second_));
  }

  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
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
      uint64_t share[4 * kRun];
      ExpSelectRange(Words(opened), given, share, begin, end);
      ExpShareRange(p_, Words(m) + begin, share, second_, y + begin, 0, end - begin);
    };
    OP_REQUIRES_OK(context, Share(context, call, n, kSelectWords, 400, dealt, second_, work));
  }

 private:
  bool second_;
};

REGISTER_CPU("ExpSelectDeal", ExpSelectDealOp);
REGISTER_CPU("ExpSelectShare", ExpSelectShareOp);

}  // namespace
}  // namespace tfe_bench
