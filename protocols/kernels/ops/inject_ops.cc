// Bit times value, b * x, in one pass: what D deals for it and the evaluators' shares of it.
//
// With b = o ^ beta (o known to E1 and E2, beta to D) and x = m - Lam:
//   b x = o (m - Lam) + (1 - 2o) (m beta - beta Lam).
// Over Z_2^64 Lam = l1 + l2.  For x given mod 2^k only, but to be used over Z_2^64 (k < 64, x >= 0
// where b = 1): as an integer x = m - Lam with Lam = lam - 2^k (1 - msb m) msb(lam), lam = l1 + l2 -
// 2^k om, so that D deals om, msb(lam) and beta msb(lam) mod 2^(64-k) too.
//
// The dealer's message, n elements: beta [8n bytes], beta lam [8n], and for k < 64 om, msb(lam),
// beta msb(lam) packed with 64-k bits each.
//
// With drop = f > 0 x is of Z_2^64, |x| < 2^62 - 2^(f+1), and b x / 2^f is wanted: then all parts
// lose their f low bits first, which leaves (x + 2^62) / 2^f >= 0 (rounded) modulo 2^k, k = 64 - f, as
// above; the evaluators subtract b 2^(62-f).  They also subtract half a unit of the result before
// they drop bits, so that the rounding is 0 in the mean (protocols/ring/backward.py).
//
// n is the number of bits: one per element, or the bits were made for another shape.
#include <vector>

#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

constexpr int kParts = 5;  // beta, beta lam, om, msb(lam), beta msb(lam)

class InjectOp : public FieldsOp {
 public:
  explicit InjectOp(OpKernelConstruction* c) : FieldsOp(c), bits_(WidthAttr(c, "bits")) {
    ReadAttrs(c, "drop", &drop_);
    Require(bits_ >= 2, "bits must be 2..64");
    Require(drop_ == 0 || (drop_ > 0 && bits_ == 64 - drop_),
            "what is dropped must leave `bits` bits");
    if (bits_ < 64) fields_.resize(kParts, {64 - bits_});
  }
  void ReadEvaluator(OpKernelConstruction* c) {
    ReadAttrs(c, "mask", &exchange_mask_, "negate", &negate_);
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const Tensor &beta = context->input(1), &l1 = context->input(2);
    const int64_t n = Elements(beta, context->input(4), l1);
    const auto l = InputWords(context, 2, 2, n);
    const Fields message = Write(context, call, fields_, n);
    const uint64_t *b = Words(beta), *x = l[0], *y = l[1], ring = ring_;
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t bit[kChunk], lam[kChunk];
      const auto put = [&](int part, auto value_of) {
        message.PutEach(part, 0, first, count, value_of);
      };
      for (int64_t i = 0; i < count; ++i) {
        bit[i] = Spread(b, first + i);
        lam[i] = ((x[first + i] >> drop_) + (y[first + i] >> drop_)) & ring;
      }
      put(0, [&](int64_t i) { return bit[i] & 1; });
      put(1, [&](int64_t i) { return bit[i] & lam[i]; });
      if (bits_ == 64) return;
      put(2, [&](int64_t i) {  // (l1 mod 2^k) + (l2 mod 2^k) = lam + 2^k om
        return ((x[first + i] >> drop_ & ring) + (y[first + i] >> drop_ & ring)) >> bits_;
      });
      put(3, [&](int64_t i) { return lam[i] >> (bits_ - 1); });
      put(4, [&](int64_t i) { return bit[i] & lam[i] >> (bits_ - 1); });
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor &masked_bits = context->input(1), &m = context->input(2);
    const int64_t n = Elements(masked_bits, context->input(5), m);
    const auto in = InputWords(context, 2, 2, n);
    const Fields dealt = Read(call, fields_, n, context->input(4));
    Tensor* out = Allocate(context, 0, m.shape());
    PrfStream leaving;
    if (exchange_mask_ >= 0) leaving = OwnStream(call, exchange_mask_, n);
    const uint64_t *bits = Words(masked_bits), *masked = in[0], *own = in[1], ring = ring_;
    uint64_t* y = Words(out);
    const uint64_t flip = negate_ ? ~uint64_t{0} : 0, second = call.second();
    const uint64_t lift = drop_ ? (uint64_t{1} << 62) - (uint64_t{1} << (drop_ - 1)) : 0;
    const uint64_t lowered = drop_ ? uint64_t{1} << (62 - drop_) : 0;
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[kParts][kChunk], mask[kChunk];
      dealt.GetEach(first, count, given);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t o = Spread(bits, first + i) ^ flip;
        const uint64_t taken = (masked[first + i] + lift) >> drop_ & ring;
        const uint64_t v = taken - lowered;
        uint64_t lam = own[first + i] >> drop_ & ring;
        uint64_t product = v * given[0][i] - given[1][i];  // share of beta (m - Lam)
        if (bits_ < 64) {
          const uint64_t low = 1 - (taken >> (bits_ - 1));
          lam -= (given[2][i] + low * given[3][i]) << bits_;
          product += (low * given[4][i]) << bits_;
        }
        const uint64_t known = (v & second) - lam;
        // o x + (1 - 2o) beta x
        y[first + i] = (known & o) + ((product ^ o) - o);
      }
      if (exchange_mask_ < 0) return;
      Fill(call, leaving, first, count, mask);
      for (int64_t i = 0; i < count; ++i) y[first + i] += mask[i];
    });
    dealt.Record();
    if (exchange_mask_ >= 0) RecordMasked(call, leaving, *out);
  }

 protected:
  // The number of elements, each with a bit.  (Bits made for another shape may take as many words.)
  static int64_t Elements(const Tensor& packed, const Tensor& size, const Tensor& value) {
    const int64_t bits = SizeFrom(size), n = value.NumElements();
    if (bits != n) {
      Require(absl::InvalidArgumentError("TfeBench: inject expects one bit per element. Received: " +
                                         std::to_string(bits) + " bits and " + std::to_string(n) +
                                         " elements."));
    }
    Require(packed.NumElements() == PackedWords(n), "Inject: the sizes do not fit");
    return n;
  }

  const int bits_;
  int drop_;
  const uint64_t ring_ = LowBits(bits_);
  std::vector<Field> fields_ = {{64}, {64}};
  int exchange_mask_;
  bool negate_;
};

#define INJECT_ATTRS TENSOR_ATTRS "; bits: int; drop: int = 0"

TFE_BENCH_CALL_OP("InjectDeal", Dealer<InjectOp>,
    "beta l1 l2 n: int64 -> message: uint8", INJECT_ATTRS, Outputs<kVector>);

// mask: the tensor number of the mask under which the share leaves, -1 to keep it as it is.
TFE_BENCH_CALL_OP("InjectShare", Evaluator<InjectOp>,
    "masked_bits m part: int64, dealt: uint8, n: int64 -> share: int64",
    "mask: int; negate: bool; " INJECT_ATTRS, Outputs<2>);

}  // namespace
}  // namespace tfe_bench
