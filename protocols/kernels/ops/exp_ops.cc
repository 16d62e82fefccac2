// Kernels around core/modular.h: exponentials of masked values, and an
// exponential and a private bit's choice in one exchange.
#include <string>
#include <vector>

#include "protocols/kernels/core/modular.h"
#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

constexpr int kShareWords = 4;  // of a residue modulo 2^256 + 1

class ExpOp : public RecordsOp {
 public:
  explicit ExpOp(OpKernelConstruction* c)
      : RecordsOp(c), prime_(Attr<std::string>(c, "form") == "prime") {
    const auto factor = Attr<std::vector<int64_t>>(c, "factor");
    ReadAttrs(c, "limbs", &p_.limbs, "offset", &p_.offset, "mantissa", &p_.mantissa, "drop",
              &p_.drop, "point", &p_.point);
    const int ring = 64 * p_.limbs;
    Require((p_.limbs == 1 || p_.limbs == 2) && factor.size() == 2 && p_.offset >= 0 &&
                p_.offset < 512 && p_.mantissa > 0 && p_.mantissa < 61 && p_.drop >= 0 &&
                p_.drop < (prime_ ? ring - 3 : 257) &&
                (!prime_ || (p_.point > 0 && p_.point < ring - 1)) &&
                (!prime_ || p_.mantissa <= 32),
            "the exponential's parameters do not fit each other");
    p_.factor[0] = static_cast<uint64_t>(factor[0]);
    p_.factor[1] = static_cast<uint64_t>(factor[1]);
    pad_words_ = prime_ ? p_.limbs : kShareWords;
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = Elements(context->input(1));
    const auto l = InputWords(context, 1, 2, n * p_.limbs);
    Tensor* out = Allocate(context, 0, {n * pad_words_});
    uint64_t* message = Words(out);
    DealRecords(context, call, n, pad_words_, 200, *out,
                [&](const uint64_t* pad, int64_t begin, int64_t end) {
                  (prime_ ? PrimeDealRange : ExpDealRange)(
                      p_, l[0] + begin * p_.limbs, l[1] + begin * p_.limbs, pad,
                      message + begin * pad_words_, 0, end - begin);
                });
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor& m = context->input(1);
    const int64_t n = Elements(m);
    const bool second = call.role == kE2;
    uint64_t* y = Words(Allocate(context, 0, m.shape()));
    uint64_t* low = Words(Allocate(context, 1, {prime_ ? n : 0}));
    ShareRecords(context, call, n, pad_words_, 200, context->input(2),
                 [&](const uint64_t* share, int64_t begin, int64_t end) {
                   const uint64_t* own = Words(m) + begin * p_.limbs;
                   uint64_t* to = y + begin * p_.limbs;
                   if (prime_) {
                     PrimeShareRange(p_, own, share, second, to, low + begin, 0, end - begin);
                   } else {
                     ExpShareRange(p_, own, share, second, to, 0, end - begin);
                   }
                 });
  }

 protected:
  int64_t Elements(const Tensor& t) const {
    Require(t.NumElements() % p_.limbs == 0, "an element of the exponential has whole limbs");
    return t.NumElements() / p_.limbs;
  }

  ExpParameters p_;
  const bool prime_;
  int pad_words_;
};

class ExpSelectOp : public ExpOp {
 public:
  explicit ExpSelectOp(OpKernelConstruction* c) : ExpOp(c) {
    Require(!prime_ && p_.limbs == 1, "an exponential is chosen in one round, of 64 bits");
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const Tensor& beta = context->input(1);
    const int64_t n = Elements(beta, context->input(2));
    const auto l = InputWords(context, 2, 2, n);
    Tensor* out = Allocate(context, 0, {n * kSelectWords});
    uint64_t* message = Words(out);
    DealRecords(context, call, n, kSelectWords, 400, *out,
                [&](const uint64_t* pad, int64_t begin, int64_t end) {
                  ExpSelectDealRange(p_, Words(beta), l[0] + begin, l[1] + begin, pad,
                                     message + begin * kSelectWords, begin, end);
                });
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor &masked_bits = context->input(1), &m = context->input(2);
    const int64_t n = Elements(masked_bits, m);
    uint64_t* y = Words(Allocate(context, 0, m.shape()));
    ShareRecords(context, call, n, kSelectWords, 400, context->input(3),
                 [&](const uint64_t* given, int64_t begin, int64_t end) {
                   uint64_t share[kShareWords * kRun];
                   ExpSelectRange(Words(masked_bits), given, share, begin, end);
                   ExpShareRange(p_, Words(m) + begin, share, call.role == kE2, y + begin, 0,
                                 end - begin);
                 });
  }

 protected:
  // With packed bits, one for each element.
  static int64_t Elements(const Tensor& bits, const Tensor& t) {
    Require(bits.NumElements() == PackedWords(t.NumElements()),
            "an exponential is chosen by one bit per element");
    return t.NumElements();
  }
};

// The messages and shares are flat: the elements' shape is the caller's business.
#define EXP_ATTRS                                                                \
  MASK_ATTRS                                                                     \
  "; form: {'one-round', 'prime'}; limbs: int; factor: list(int); offset: int; " \
  "mantissa: int; drop: int; point: int"

// The dealer's factor 2^offset exp(-(l1 + l2)), less the pad: what it sends to E2.
TFE_BENCH_CALL_OP("ExpDeal", Dealer<ExpOp>,
    "l1 l2: int64 -> message: int64", EXP_ATTRS, Outputs<kVector>);

// An evaluator's additive share of the exponential.  E1 makes its share of the dealer's factor from
// the PRF (`dealt` is empty), E2 has received it.  `low` is empty in the one-round form.
TFE_BENCH_CALL_OP("ExpShare", Evaluator<ExpOp>,
    "m dealt: int64 -> y low: int64", EXP_ATTRS, Outputs<1, kVector>);

// The dealer's two factors of each element, less their pads: what it sends to E2.
TFE_BENCH_CALL_OP("ExpSelectDeal", Dealer<ExpSelectOp>,
    "beta l1 l2: int64 -> message: int64", EXP_ATTRS, Outputs<kVector>);

// An evaluator's additive share, as above.
TFE_BENCH_CALL_OP("ExpSelectShare", Evaluator<ExpSelectOp>,
    "masked_bits m dealt: int64 -> share: int64", EXP_ATTRS, Outputs<2>);

}  // namespace
}  // namespace tfe_bench
