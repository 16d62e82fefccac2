// What stands around a sum of products (protocols/ring/products.py), each party's part in one pass,
// and messages that are masked and packed at once (protocols/ring/masked.py).
#include <algorithm>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

// x + mask or x - mask, of which the low `width` bits leave this party.
class PackMaskedOp : public SiteOp {
 public:
  explicit PackMaskedOp(OpKernelConstruction* c)
      : SiteOp(c), width_(WidthAttr(c, "width")), subtract_(Attr<bool>(c, "subtract")) {}

  void Work(OpKernelContext* context) override {
    const Call call(context);
    const Tensor& x = context->input(1);
    const int64_t n = x.NumElements();
    Tensor* out = Allocate(context, 0, {PackedBytes(n, width_)});
    const PrfStream stream = Stream(call, n);
    const uint64_t *in = Words(x), sign = subtract_ ? ~uint64_t{0} : 0;
    uint8_t* to = Bytes(out);
    Chunks(context, n, 4, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t v[kChunk];
      Fill(call, stream, first, count, v);
      for (int64_t i = 0; i < count; ++i) v[i] = in[first + i] + ((v[i] ^ sign) - sign);
      PackRange(v, count, width_, to + first * width_ / 8, 0, count);
    });
    RecordMasked(call, stream, *out);
  }

 private:
  const int width_;
  const bool subtract_;
};

// An evaluator's share of 2^shift (sum + addend) mod 2^width, and what it sends of it divided by
// 2^drop.  Its share of 2^shift times the sum is the dealer's plus `crossed` at E2, less
// 2^shift `crossed` at E1.
class SumShareOp : public SiteOp {
 public:
  explicit SumShareOp(OpKernelConstruction* c)
      : SiteOp(c), width_(WidthAttr(c, "width")), bits_(WidthAttr(c, "bits")) {
    ReadAttrs(c, "drop", &drop_, "shift", &shift_, "keep", &keep_);
    Require(drop_ >= 1 && drop_ + bits_ <= width_ && (shift_ == 0 || shift_ == 1),
            "SumShare: drop and bits do not fit the width");
  }

  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor &crossed = context->input(1), &addend = context->input(2);
    const int64_t n = crossed.NumElements(), period = addend.NumElements();
    Require(period == 0 || n % period == 0, "SumShare: the addend does not fit the sum");
    const Tensor& dealt = context->input(3);
    const bool is_e1 = call.role == kE1;
    Require(is_e1 || dealt.NumElements() == PackedBytes(n, width_),
            "TfeBench: a dealt message has the wrong size");
    const PrfStream own = is_e1 ? Stream(call, kK1, 0, n) : PrfStream{};
    Tensor* out = Allocate(context, 0, {PackedBytes(n, bits_)});
    Tensor* rounded = Allocate(context, 1, keep_ ? crossed.shape() : TensorShape({0}));
    uint64_t* kept = keep_ ? Words(rounded) : nullptr;
    const PrfStream leaving = Stream(call, n);
    const uint64_t *x = Words(crossed), *a = Words(addend), second = call.second();
    const int halved = is_e1 ? shift_ : 0;
    const uint8_t* from = Bytes(dealt);
    uint8_t* to = Bytes(out);
    Chunks(context, n, 8, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t share[kChunk], mask[kChunk], added[kChunk];
      if (is_e1) {
        Fill(call, own, first, count, share);
      } else {
        UnpackRange(from + first * width_ / 8, count, width_, share, 0, count);
      }
      Fill(call, leaving, first, count, mask);
      const uint64_t* with = a + first;
      if (period == 0) {
        std::fill(added, added + count, 0);
        with = added;
      } else if (period < n) {
        int64_t at = first % period;
        for (int64_t i = 0; i < count; ++i) {
          added[i] = a[at];
          if (++at == period) at = 0;
        }
        with = added;
      }
      for (int64_t i = 0; i < count; ++i) {
        // E1 rounds its share down; E2 rounds it up: its negated share is rounded down.
        const uint64_t v = (share[i] ^ second) - second;
        const uint64_t plus = ((with[i] ^ second) - second) << shift_;
        const uint64_t sum = v - (x[first + i] << halved) + plus;
        const uint64_t part = static_cast<uint64_t>(static_cast<int64_t>(sum) >> drop_);
        const uint64_t u = (part ^ second) - second;
        if (kept) kept[first + i] = u;
        mask[i] += u;
      }
      PackRange(mask, count, bits_, to + first * bits_ / 8, 0, count);
    });
    if (is_e1) RecordShare(call, own, n);
    RecordMasked(call, leaving, *out);
  }

 private:
  const int width_, bits_;
  int drop_, shift_;
  bool keep_;
};

void SumShareShape(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, Attr<bool>(c, "keep") ? c->input(1) : c->Vector(0));
}

TFE_BENCH_CALL_OP("PackMasked", PackMaskedOp,
    "x: int64 -> packed: uint8", MASK_ATTRS "; width: int; subtract: bool", Outputs<kVector>);

// The message leaves under the mask that the attributes name, D's message under mask 0 of K1.
// crossed: the local products; addend: the last axes of this evaluator's share of an
// addend, empty without one; dealt: D's message at E2, empty at E1.  The share is empty unless it is
// kept; it is right modulo 2^(width - drop).
TFE_BENCH_CALL_OP("SumShare", Evaluator<SumShareOp>,
    "crossed addend: int64, dealt: uint8 -> message: uint8, share: int64",
    MASK_ATTRS "; width: int; drop: int; bits: int; shift: int; keep: bool",
    Infer<SumShareShape>);

}  // namespace
}  // namespace tfe_bench
