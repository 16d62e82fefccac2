// The extension of Z_2^k to a larger ring (protocols/ring/small_ring.py), each party's part in one pass.
//
// With x' = x + offset, read mod 2^k, and l1 + l2 = lam + 2^k om the integer is
//   x' = m - (l1 + l2) + 2^k (om + (1 - msb m) msb lam).
// D's message: om - F(K1, 0) and msb(lam) - F(K1, 1), `ring` bits each.  The evaluators' sum of what
// stands behind 2^k leaves, `sent` bits of it, under masks of K1 and K2 of the number `output_mask`.
#include <algorithm>
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/exchange.h"

namespace tfe_bench {
namespace {

class LiftOp : public FieldsOp {
 public:
  explicit LiftOp(OpKernelConstruction* c)
      : FieldsOp(c), k_(WidthAttr(c, "k")), fields_(2, {WidthAttr(c, "ring")}) {
    Require(k_ >= 2 && k_ + fields_[0].width <= 64, "a lift needs a ring larger than its value's");
  }
  void ReadEvaluator(OpKernelConstruction* c) {
    ReadAttrs(c, "sent", &sent_, "offset", &offset_, "keep", &keep_, "output_mask", &output_mask_);
    Require(sent_ >= 0 && sent_ <= fields_[0].width, "a lift sends no more bits than D deals");
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(1).NumElements();
    const auto l = InputWords(context, 1, 2, n);
    const Fields message = Write(context, call, fields_, n);
    const uint64_t *x = l[0], *y = l[1], low = LowBits(k_);
    Chunks(context, n, 8, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t over[kChunk], top[kChunk];
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t sum = (x[first + i] & low) + (y[first + i] & low);
        over[i] = sum >> k_;
        top[i] = sum >> (k_ - 1) & 1;
      }
      message.Put(0, 0, first, count, over);
      message.Put(1, 0, first, count, top);
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor& m = context->input(1);
    const int64_t n = m.NumElements();
    const auto in = InputWords(context, 1, 2, n);
    const Fields dealt = Read(call, fields_, n, context->input(3));
    Tensor* out = Allocate(context, 0, {sent_ ? PackedBytes(n, sent_) : 0});
    Tensor* share = Allocate(context, 1, keep_ ? m.shape() : TensorShape({0}));
    uint64_t* kept = keep_ ? Words(share) : nullptr;
    const PrfStream leaving = sent_ ? OwnStream(call, output_mask_, n) : PrfStream{};
    const uint64_t *masked = in[0], *part = in[1], low = LowBits(k_), offset = offset_;
    const uint64_t known = ~call.second();  // E1 adds what both evaluators know
    uint8_t* to = Bytes(out);
    Chunks(context, n, 10, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[2][kChunk], mask[kChunk];
      dealt.GetEach(first, count, given);
      if (sent_) {
        Fill(call, leaving, first, count, mask);
      } else {
        std::fill(mask, mask + count, 0);
      }
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t value = (masked[first + i] + offset) & low;
        const uint64_t high = given[0][i] + (given[1][i] & ((value >> (k_ - 1)) - 1));
        mask[i] += high;
        if (kept) {
          kept[first + i] = (high << k_) + ((value - offset) & known) - (part[first + i] & low);
        }
      }
      if (sent_) PackRange(mask, count, sent_, to + first * sent_ / 8, 0, count);
    });
    dealt.Record();
    if (sent_) RecordMasked(call, leaving, *out);
  }

 private:
  const int k_;
  const std::vector<Field> fields_;
  int sent_ = 0, output_mask_ = 0;
  int64_t offset_ = 0;
  bool keep_ = false;
};

class LiftExchangeOp : public Kernel {
 public:
  explicit LiftExchangeOp(OpKernelConstruction* c)
      : Kernel(c), k_(WidthAttr(c, "k")), sent_(WidthAttr(c, "sent")) {
    ReadAttrs(c, "offset", &offset_);
    Require(k_ + sent_ <= 64, "LiftExchange: the rings do not fit a word");
  }
  void Work(OpKernelContext* context) override {
    const Tensor& m = context->input(0);
    const PackedSums high(context->input(1), context->input(2), m.NumElements(), sent_);
    uint64_t* y = Words(Allocate(context, 0, m.shape()));
    const uint64_t *x = Words(m), low = LowBits(k_), offset = offset_;
    high.ForEachChunk(context, [&](int64_t first, const uint64_t* sums, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        y[first + i] = ((x[first + i] + offset) & low) + (sums[i] << k_) - offset;
      }
    });
  }

 private:
  const int k_, sent_;
  int64_t offset_;
};

class LiftMaskOp : public SiteOp {
 public:
  explicit LiftMaskOp(OpKernelConstruction* c) : SiteOp(c), k_(WidthAttr(c, "k")) {
    Require(k_ <= 63, "LiftMask: no bit is left for a mask");
  }
  void Work(OpKernelContext* context) override {
    const Call call(context);
    const Tensor& part = context->input(1);
    const int64_t n = part.NumElements();
    uint64_t* y = Words(Allocate(context, 0, part.shape()));
    const PrfStream stream = Stream(call, n);
    const uint64_t *x = Words(part), low = LowBits(k_);
    Chunks(context, n, 3, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t mask[kChunk];
      Fill(call, stream, first, count, mask);
      for (int64_t i = 0; i < count; ++i) y[first + i] = (x[first + i] & low) + (mask[i] << k_);
    });
    RecordShare(call, stream, n);
  }

 private:
  const int k_;
};

void LiftShareShape(InferenceContext* c) {
  c->set_output(0, c->Vector(c->UnknownDim()));
  c->set_output(1, Attr<bool>(c, "keep") ? c->input(1) : c->Vector(0));
}

#define LIFT_ATTRS TENSOR_ATTRS "; k: int; ring: int"

TFE_BENCH_CALL_OP("LiftDeal", Dealer<LiftOp>,
    "l1 l2: int64 -> message: uint8", LIFT_ATTRS, Outputs<kVector>);

// part: this evaluator's l1 or l2; dealt: D's message at E2, empty at E1.  The message is empty if no
// bit is sent.  The share of x modulo 2^(k + ring) is empty unless it is kept.
TFE_BENCH_CALL_OP("LiftShare", Evaluator<LiftOp>,
    "m part: int64, dealt: uint8 -> message: uint8, share: int64",
    LIFT_ATTRS "; sent: int; offset: int; keep: bool; output_mask: int", Infer<LiftShareShape>);

// m of the value in the larger ring, and this party's l1 or l2 of it.
TFE_BENCH_OP("LiftExchange", LiftExchangeOp,
    "m: int64, own got: uint8 -> y: int64", "k: int; sent: int; offset: int", Outputs<0>);
TFE_BENCH_CALL_OP("LiftMask", LiftMaskOp,
    "part: int64 -> y: int64", MASK_ATTRS "; k: int", Outputs<1>);

}  // namespace
}  // namespace tfe_bench
