// Kernels of protocols/nn/adaptive.py, in one pass each instead of the hundred passes over memory
// of TensorFlow's elementwise ops.
//
// Select: with b_j = o_j ^ beta_j (o known to E1 and E2, beta to D) nested bits of x's segment, the
// piece of that segment telescopes, piece_last + sum_j b_j (piece_j - piece_(j+1)), where piece_j is x
// shifted by a public number of bits, mod 2^width.  The same bits choose a public factor, or a
// multiple of a private u.  D deals beta_j, beta_j lam(piece_j - piece_(j+1)) and beta_j lam_u.
//
// Lifted product: x y over Z_2^64 for y given mod 2^k only, |y| < 2^(k-2): as an integer
//   y = P - lam + (1 - b) t 2^k,   P = (m_y + 2^(k-2) mod 2^k) - 2^(k-2),   b its sum's top bit,
//   lam = l1 + l2 - 2^k om with l1, l2 < 2^k, t = lam's top bit,
// so that D deals om, t and lam_x t mod 2^(64-k), and lam_x lam.
//
// Fields follow each other in the dealer's message, each packed with its own width under its own mask.
#include <algorithm>
#include <vector>

#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

constexpr int kMaxCuts = 15;

// ---- selection

class SelectOp : public FieldsOp {
 public:
  explicit SelectOp(OpKernelConstruction* c)
      : FieldsOp(c),
        ring_(WidthAttr(c, "ring")),
        width_(WidthAttr(c, "width")),
        factor_width_(WidthAttr(c, "factor_width")) {
    ReadAttrs(c, "shifts", &shifts_, "factors", &factors_, "multiply", &multiply_);
    cuts_ = static_cast<int>(shifts_.size()) - 1;
    bool fits = cuts_ >= 1 && cuts_ <= kMaxCuts && factors_.size() == shifts_.size() &&
                ring_ >= 2 && width_ >= 2 && factor_width_ >= 2;
    for (int shift : shifts_) fits = fits && shift < 64 && -shift < ring_ - 1;
    Require(fits, "the segments do not fit each other");
    fields_ = {{std::max(width_, factor_width_), cuts_}, {width_, cuts_}};
    if (multiply_) fields_.push_back({factor_width_, cuts_});
  }
  void ReadEvaluator(OpKernelConstruction* c) {
    ReadAttrs(c, "drop", &drop_);
    Require(drop_ >= 0 && drop_ < width_, "drop is too large");
  }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(2).NumElements(), words = PackedWords(n);
    const auto in = Operands(context, n);
    const Fields message = Write(context, call, fields_, n);
    const uint64_t *b = in[0], *x = in[1], *y = in[2], *p = in[3], *q = in[4];
    Chunks(context, n, 20 * cuts_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t bit[kChunk];
      for (int j = 0; j < cuts_; ++j) {
        const Piece here = PieceOf(j), next = PieceOf(j + 1);
        SpreadEach(b + j * words, first, count, bit);
        message.PutEach(0, j, first, count, [&](int64_t i) { return bit[i] & 1; });
        message.PutEach(1, j, first, count, [&](int64_t i) {
          const uint64_t l = x[first + i], r = y[first + i];
          return bit[i] & (here(l) + here(r) - next(l) - next(r));
        });
        if (!multiply_) continue;
        message.PutEach(2, j, first, count,
                        [&](int64_t i) { return bit[i] & (p[first + i] + q[first + i]); });
      }
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Tensor& m = context->input(2);
    const int64_t n = m.NumElements(), words = PackedWords(n);
    const auto in = Operands(context, n);
    const Fields dealt = Read(call, fields_, n, context->input(6));
    uint64_t* y = Words(Allocate(context, 0, m.shape()));
    uint64_t* u = Words(Allocate(context, 1, m.shape()));
    const uint64_t *bits = in[0], *masked = in[1], *own = in[2], *v = in[3], *w = in[4];
    const uint64_t known = call.second(), low = LowBits(width_);
    const uint64_t up = known & ((uint64_t{1} << drop_) - 1);
    Chunks(context, n, 20 * cuts_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t beta[kChunk], product[kChunk], o[kChunk];
      alignas(64) uint64_t piece[kChunk], multiple[kChunk];
      const uint64_t last = static_cast<uint64_t>(factors_[cuts_]);
      const Piece top = PieceOf(cuts_);
      for (int64_t i = 0; i < count; ++i) {
        piece[i] = (top(masked[first + i]) & known) - top(own[first + i]);
        multiple[i] =
            last * (multiply_ ? (v[first + i] & known) - w[first + i] : uint64_t{1} & known);
      }
      for (int j = 0; j < cuts_; ++j) {
        const Piece here = PieceOf(j), next = PieceOf(j + 1);
        SpreadEach(bits + j * words, first, count, o);
        dealt.Get(0, j, first, count, beta);
        dealt.Get(1, j, first, count, product);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t a = masked[first + i], l = own[first + i];
          const uint64_t step = here(a) - next(a), mask = here(l) - next(l);
          const uint64_t flipped = step * beta[i] - product[i];  // share of beta (step - mask)
          piece[i] += ((flipped ^ o[i]) - o[i]) + (((step & known) - mask) & o[i]);
        }
        const uint64_t more = static_cast<uint64_t>(factors_[j] - factors_[j + 1]);
        if (!multiply_) {
          for (int64_t i = 0; i < count; ++i) {
            multiple[i] += more * (((beta[i] ^ o[i]) - o[i]) + (o[i] & 1 & known));
          }
          continue;
        }
        dealt.Get(2, j, first, count, product);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t a = v[first + i], l = w[first + i];
          const uint64_t flipped = a * beta[i] - product[i];
          multiple[i] += more * (((flipped ^ o[i]) - o[i]) + (((a & known) - l) & o[i]));
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        y[first + i] = ((piece[i] + up) & low) >> drop_;
        u[first + i] = multiple[i];
      }
    });
    dealt.Record();
  }

 protected:
  // x shifted by the public number of bits of a segment.  (Without a branch, so that loops over
  // elements run in vectors.)
  struct Piece {
    uint64_t keep;
    int left, right;
    uint64_t operator()(uint64_t a) const { return (a & keep) << left >> right; }
  };
  Piece PieceOf(int segment) const {
    const int shift = shifts_[segment];
    return {shift >= 0 ? ~uint64_t{0} : LowBits(ring_), std::max(shift, 0), std::max(-shift, 0)};
  }
  // All ones or zeros for each of some bits.
  static void SpreadEach(const uint64_t* row, int64_t first, int64_t count, uint64_t* out) {
    for (int64_t i = 0; i < count;) {
      const uint64_t word = row[(first + i) / 64] >> ((first + i) % 64);
      const int64_t some = std::min(count - i, 64 - (first + i) % 64);
      for (int64_t k = 0; k < some; ++k) out[i + k] = 0 - (word >> k & 1);
      i += some;
    }
  }
  // The bits, the two parts of x, and those of u, or of x again without u.
  std::vector<const uint64_t*> Operands(OpKernelContext* context, int64_t n) const {
    auto operands = InputWords(context, 1, 1, cuts_ * PackedWords(n));
    const auto x = InputWords(context, 2, 2, n), u = InputWords(context, 4, 2, multiply_ ? n : 0);
    for (const auto& pair : {x, multiply_ ? u : x}) {
      operands.insert(operands.end(), pair.begin(), pair.end());
    }
    return operands;
  }

  const int ring_, width_, factor_width_;
  int cuts_, drop_;
  std::vector<Field> fields_;  // beta_j, beta_j lam, beta_j lam_u
  std::vector<int> shifts_;
  std::vector<int64_t> factors_;
  bool multiply_;
};

// ---- a product with a factor of a small ring

class LiftedProductOp : public FieldsOp {
 public:
  explicit LiftedProductOp(OpKernelConstruction* c) : FieldsOp(c), ring_(WidthAttr(c, "ring")) {
    Require(ring_ >= 3 && ring_ < 64, "ring must be 3..63");
    fields_ = {{64}, {64 - ring_}, {64 - ring_}, {64 - ring_}};
  }
  void ReadEvaluator(OpKernelConstruction* c) { ReadAttrs(c, "mask", &exchange_mask_); }

  void Deal(OpKernelContext* context, const Call& call) const {
    const int64_t n = context->input(1).NumElements();
    const auto in = InputWords(context, 1, 4, n);
    const Fields message = Write(context, call, fields_, n);
    const uint64_t *x1 = in[0], *x2 = in[1], *y1 = in[2], *y2 = in[3];
    Chunks(context, n, 30, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t value[kFields][kChunk];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t whole = (y1[at] & low_) + (y2[at] & low_);
        const uint64_t lam = whole & low_, top = lam >> (ring_ - 1);
        const uint64_t x = x1[at] + x2[at];
        value[0][i] = x * lam;
        value[1][i] = whole >> ring_;
        value[2][i] = top;
        value[3][i] = x & (0 - top);
      }
      for (int f = 0; f < kFields; ++f) message.Put(f, 0, first, count, value[f]);
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const TensorShape& shape = context->input(1).shape();
    const int64_t n = shape.num_elements();
    const auto in = InputWords(context, 1, 4, n);
    const Fields dealt = Read(call, fields_, n, context->input(5));
    Tensor* out = Allocate(context, 0, shape);
    const PrfStream leaving = OwnStream(call, exchange_mask_, n);
    const uint64_t *x_m = in[0], *x_l = in[1], *y_m = in[2], *y_l = in[3];
    uint64_t* y = Words(out);
    const uint64_t known = call.second(), quarter = uint64_t{1} << (ring_ - 2);
    Chunks(context, n, 30, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[kFields][kChunk], mask[kChunk];
      dealt.GetEach(first, count, given);
      Fill(call, leaving, first, count, mask);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t shifted = (y_m[at] + quarter) & low_;
        const uint64_t p = shifted - quarter, keep = 1 - (shifted >> (ring_ - 1));
        const uint64_t lam = (y_l[at] & low_) - (given[1][i] << ring_);
        const uint64_t x = x_m[at];
        const uint64_t wrap = keep * (x * given[2][i] - given[3][i]);
        y[at] = ((x & known) - x_l[at]) * p - x * lam + given[0][i] + (wrap << ring_) + mask[i];
      }
    });
    dealt.Record();
    RecordMasked(call, leaving, *out);
  }

 protected:
  static constexpr int kFields = 4;  // lam_x lam, om, t, lam_x t

  const int ring_;
  const uint64_t low_ = LowBits(ring_);
  int exchange_mask_;
  std::vector<Field> fields_;
};

#define SELECT_ATTRS                                                                    \
  TENSOR_ATTRS                                                                          \
  "; ring: int; shifts: list(int); factors: list(int); width: int; factor_width: int; " \
  "multiply: bool"

TFE_BENCH_CALL_OP("SelectDeal", Dealer<SelectOp>,
    "beta l1 l2 u1 u2: int64 -> message: uint8", SELECT_ATTRS, Outputs<kVector>);

// drop: bits dropped from the chosen piece, floor at E1 and ceiling at E2.
TFE_BENCH_CALL_OP("SelectShare", Evaluator<SelectOp>,
    "masked_bits m part um upart: int64, dealt: uint8 -> share factor: int64",
    "drop: int; " SELECT_ATTRS, Outputs<2, 2>);

TFE_BENCH_CALL_OP("LiftedProductDeal", Dealer<LiftedProductOp>,
    "x1 x2 y1 y2: int64 -> message: uint8", "ring: int; " TENSOR_ATTRS, Outputs<kVector>);

// mask: the tensor number of the mask under which the share leaves.
TFE_BENCH_CALL_OP("LiftedProductShare", Evaluator<LiftedProductOp>,
    "x xpart y ypart: int64, dealt: uint8 -> share: int64", "mask: int; ring: int; " TENSOR_ATTRS,
    Outputs<1>);

}  // namespace
}  // namespace tfe_bench
