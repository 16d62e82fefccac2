// Truncation that never fails (T3, protocols/ring/truncation.py), each party's part in one pass;
// and the truncated value of a window for each of its cells, times a private bit of the cell
// (protocols/nn/pool_gradient.py).
//
// With r = l1 + l2 mod 2^64 and c = m + 2^62 the value is, for |x| < 2^62,
//   x / 2^f = P - (r >> f) + 2^(64-f) msb(r) W,  P = (c >> f) - 2^(62-f), W = 1 - msb(c), rounded.
// D's message, n elements: (r >> f) - F(K1, 0) [8n bytes], msb(r) - F(K1, 1) packed with f bits
// each.  For T3 alone the evaluators exchange W msb(r) mod 2^f under F(K1, 2) and F(K2, 2).
//
// For the cells' bits b = o ^ beta (o known to E1 and E2, beta to D) D also deals beta,
// beta (r >> f) and beta msb(r) mod 2^f for each cell, under F(K1, 2), F(K1, 3) and F(K1, 4).
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/exchange.h"

namespace tfe_bench {
namespace {

constexpr uint64_t kHalf = uint64_t{1} << 62;
constexpr int kFresh = 2;  // the number of the result's masks

// The public f, and what the evaluators know.
struct Drop {
  explicit Drop(OpKernelConstruction* c) : bits(Attr<int>(c, "drop")) {
    Require(bits >= 1 && bits <= 62, "drop must be 1..62");
  }
  uint64_t Known(uint64_t m) const { return ((m + kHalf) >> bits) - (kHalf >> bits); }  // P
  static uint64_t Low(uint64_t m) { return ((m + kHalf) >> 63) - 1; }  // all ones where W is 1

  const int bits, up = 64 - bits;
};

class TruncateOp : public FieldsOp {
 public:
  explicit TruncateOp(OpKernelConstruction* c)
      : FieldsOp(c), drop_(c), fields_({{64}, {drop_.bits}}) {}

  void Deal(OpKernelContext* context, const Call& call) const {
    const TensorShape& shape = context->input(1).shape();
    const int64_t n = shape.num_elements();
    const auto l = InputWords(context, 1, 2, n);
    const Fields message = Write(context, call, fields_, n);
    uint64_t *p = Words(Allocate(context, 1, shape)), *q = Words(Allocate(context, 2, shape));
    const PrfStream own1 = Stream(call, kK1, kFresh, n), own2 = Stream(call, kK2, kFresh, n);
    const uint64_t *x = l[0], *y = l[1];
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t c[kChunk], d[kChunk], shifted[kChunk], top[kChunk], sent[kChunk];
      Fill(call, own1, begin, count, c);
      Fill(call, own2, begin, count, d);
      DealParts(message, begin, count, [&](int64_t i) { return x[i] + y[i]; }, shifted, top, sent);
      for (int64_t i = 0; i < count; ++i) {
        p[begin + i] = shifted[i] - sent[i] + (c[i] << drop_.up);  // E1 has what was not sent
        q[begin + i] = sent[i] + (d[i] << drop_.up);
      }
    });
    message.Record();
    RecordShare(call, own1, n);
    RecordShare(call, own2, n);
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor& m = context->input(1);
    const int64_t n = m.NumElements();
    const Fields dealt = Read(call, fields_, n, context->input(2));
    Tensor* own = Allocate(context, 0, {PackedBytes(n, drop_.bits)});
    uint64_t* y = Words(Allocate(context, 1, m.shape()));
    const PrfStream leaving = OwnStream(call, kFresh, n);
    const uint64_t* masked = Words(m);
    uint8_t* to = Bytes(own);
    Chunks(context, n, 8, [&](int64_t begin, int64_t count) {
      alignas(64) uint64_t given[2][kChunk], pad[kChunk];
      dealt.GetEach(begin, count, given);
      Fill(call, leaving, begin, count, pad);
      for (int64_t i = 0; i < count; ++i) {
        y[begin + i] = given[kShifted][i] + (pad[i] << drop_.up);
        pad[i] += given[kTop][i] & Drop::Low(masked[begin + i]);
      }
      PackRange(pad, count, drop_.bits, to + begin * drop_.bits / 8, 0, count);
    });
    dealt.Record();
    RecordMasked(call, leaving, *own);
  }

 protected:
  enum Part { kShifted, kTop, kBeta, kBetaShifted, kBetaTop };

  // The dealer's r >> f and msb(r) of elements [first, first + count), and what is sent of the first.
  template <typename Fn>
  void DealParts(const Fields& message, int64_t first, int64_t count, Fn r_of, uint64_t* shifted,
                 uint64_t* top, uint64_t* sent) const {
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t r = r_of(first + i);
      sent[i] = shifted[i] = r >> drop_.bits;
      top[i] = r >> 63;
    }
    message.Put(kShifted, 0, first, count, sent);
    message.PutEach(kTop, 0, first, count, [&](int64_t i) { return top[i]; });
  }

  const Drop drop_;
  std::vector<Field> fields_;
};

class TruncateExchangeOp : public Kernel {
 public:
  explicit TruncateExchangeOp(OpKernelConstruction* c) : Kernel(c), drop_(c) {}
  void Work(OpKernelContext* context) override {
    const Tensor& m = context->input(0);
    const PackedSums wraps(context->input(1), context->input(2), m.NumElements(), drop_.bits);
    uint64_t* y = Words(Allocate(context, 0, m.shape()));
    const uint64_t* masked = Words(m);
    wraps.ForEachChunk(context, [&](int64_t first, const uint64_t* sums, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        y[first + i] = drop_.Known(masked[first + i]) + (sums[i] << drop_.up);
      }
    });
  }

 private:
  const Drop drop_;
};

// ---- for the cells of windows

class UnpoolOp : public TruncateOp {
 public:
  explicit UnpoolOp(OpKernelConstruction* c) : TruncateOp(c) {
    ReadAttrs(c, "cells", &cells_, "width", &width_);
    Require(cells_ >= 1 && SizesFit({cells_, width_}) && width_ % 64 == 0,
            "width must be a multiple of 64");
    for (const int bits : {64, 64, drop_.bits}) fields_.push_back({bits, cells_});
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = Elements(context->input(1), context->input(2));
    const auto l = InputWords(context, 2, 2, n);
    const Fields message = Write(context, call, fields_, width_);
    const uint64_t *b = Words(context->input(1)), *x = l[0], *y = l[1];
    Chunks(context, width_, 8 * (2 + 3 * cells_), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t shifted[kChunk], top[kChunk], sent[kChunk];
      const auto r = [&](int64_t i) { return i < n ? x[i] + y[i] : 0; };
      DealParts(message, first, count, r, shifted, top, sent);
      for (int64_t cell = 0; cell < cells_; ++cell) {
        const auto bit = [&](int64_t i) { return Spread(b, cell * width_ + first + i); };
        const auto put = [&](Part part, auto value_of) {
          message.PutEach(part, cell, first, count, value_of);
        };
        put(kBeta, [&](int64_t i) { return bit(i) & 1; });
        put(kBetaShifted, [&](int64_t i) { return bit(i) & shifted[i]; });
        put(kBetaTop, [&](int64_t i) { return bit(i) & top[i]; });
      }
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor &masked_bits = context->input(1), &m = context->input(2);
    const int64_t n = Elements(masked_bits, m);
    const Fields dealt = Read(call, fields_, width_, context->input(3));
    uint64_t* y = Words(Allocate(context, 0, {cells_, width_}));
    const uint64_t *o = Words(masked_bits), *masked = Words(m), second = call.second();
    Chunks(context, width_, 10 * (2 + 3 * cells_), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t known[kChunk], low[kChunk], v[kChunk], given[3][kChunk];
      dealt.Get(kShifted, 0, first, count, given[0]);
      dealt.Get(kTop, 0, first, count, given[1]);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t window = first + i < n ? masked[first + i] : 0;
        known[i] = drop_.Known(window);
        low[i] = Drop::Low(window);
        v[i] = (known[i] & second) - given[0][i] + ((given[1][i] & low[i]) << drop_.up);
      }
      for (int64_t cell = 0; cell < cells_; ++cell) {
        const int64_t at = cell * width_ + first;
        for (int f = 0; f < 3; ++f) dealt.Get(kBeta + f, cell, first, count, given[f]);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t bit = Spread(o, at + i);
          const uint64_t flipped =
              known[i] * given[0][i] - given[1][i] + ((given[2][i] & low[i]) << drop_.up);
          y[at + i] = (v[i] & bit) + ((flipped ^ bit) - bit);
        }
      }
    });
    dealt.Record();
  }

 protected:
  // The number of windows.
  int64_t Elements(const Tensor& bits, const Tensor& g) const {
    const int64_t n = g.NumElements();
    Require(bits.NumElements() == cells_ * width_ / 64 && n <= width_ && width_ - n < 64,
            "TfeBench: the sizes do not fit each other");
    return n;
  }

  int64_t cells_, width_;
};

TensorShape RouteShape(InferenceContext* c) {
  return ShapeOf({Attr<int64_t>(c, "cells"), Attr<int64_t>(c, "width")});
}

#define DROP_ATTRS SITE_ATTRS "; drop: int"
#define ROUTE_ATTRS DROP_ATTRS "; cells: int; width: int"

TFE_BENCH_CALL_OP("TruncateDeal", Dealer<TruncateOp>,
    "l1 l2: int64 -> message: uint8, first second: int64", DROP_ATTRS, Outputs<kVector, 1, 1>);

// dealt: D's message at E2, empty at E1.  own: what is sent; part: this evaluator's new l1 or l2.
TFE_BENCH_CALL_OP("TruncateShare", Evaluator<TruncateOp>,
    "m: int64, dealt: uint8 -> own: uint8, part: int64", DROP_ATTRS, Outputs<kVector, 1>);

TFE_BENCH_OP("TruncateExchange", TruncateExchangeOp,
    "m: int64, own got: uint8 -> masked_bits: int64", "drop: int", Outputs<0>);

// l1, l2 of a gradient, one for each window; beta [cells, width] packed, width a multiple of 64.
TFE_BENCH_CALL_OP("UnpoolDeal", Dealer<UnpoolOp>,
    "beta l1 l2: int64 -> message: uint8", ROUTE_ATTRS, Outputs<kVector>);

// The evaluators' shares [cells, width] of what each cell gets.
TFE_BENCH_CALL_OP("UnpoolShare", Evaluator<UnpoolOp>,
    "masked_bits m: int64, dealt: uint8 -> share: int64", ROUTE_ATTRS, OutputShape<RouteShape>);

}  // namespace
}  // namespace tfe_bench
