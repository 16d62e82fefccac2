// Kernels of protocols/nn/adaptive.py, in one pass each: what would be a hundred passes over memory as
// TensorFlow's elementwise ops.
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
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

constexpr int kMaxCuts = 15;

// ---- selection

#define SELECT_ATTRS              \
  TENSOR_ATTRS.Attr("ring: int")  \
      .Attr("shifts: list(int)")  \
      .Attr("factors: list(int)") \
      .Attr("width: int")         \
      .Attr("factor_width: int")  \
      .Attr("multiply: bool")

REGISTER_OP("TfeBench>SelectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Input("u1: int64")
    .Input("u2: int64")
    .Output("message: uint8")
    .SELECT_ATTRS.SetShapeFn(Vectors);

// drop: bits dropped from the chosen piece, floor at E1 and ceiling at E2.
REGISTER_OP("TfeBench>SelectShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("m: int64")
    .Input("part: int64")
    .Input("um: int64")
    .Input("upart: int64")
    .Input("dealt: uint8")
    .Output("share: int64")
    .Output("factor: int64")
    .Attr("drop: int")
    .SELECT_ATTRS.SetShapeFn(LikeInput<2>);

class SelectOp : public FieldsOp {
 public:
  explicit SelectOp(OpKernelConstruction* c) : FieldsOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("ring", &ring_));
    OP_REQUIRES_OK(c, c->GetAttr("shifts", &shifts_));
    OP_REQUIRES_OK(c, c->GetAttr("factors", &factors_));
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES_OK(c, c->GetAttr("factor_width", &factor_width_));
    OP_REQUIRES_OK(c, c->GetAttr("multiply", &multiply_));
    cuts_ = static_cast<int>(shifts_.size()) - 1;
    bool fits = cuts_ >= 1 && cuts_ <= kMaxCuts && factors_.size() == shifts_.size() &&
                ring_ >= 2 && ring_ <= 64 && width_ >= 2 && width_ <= 64 && factor_width_ >= 2 &&
                factor_width_ <= 64;
    for (int shift : shifts_) fits = fits && shift < 64 && -shift < ring_ - 1;
    OP_REQUIRES(c, fits, absl::InvalidArgumentError("the segments do not fit each other"));
    mask_ = ring_ == 64 ? ~uint64_t{0} : (uint64_t{1} << ring_) - 1;
    fields_ = {{std::max(width_, factor_width_), cuts_}, {width_, cuts_}};
    if (multiply_) fields_.push_back({factor_width_, cuts_});
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
    return {shift >= 0 ? ~uint64_t{0} : mask_, std::max(shift, 0), std::max(-shift, 0)};
  }
  // All ones or zeros for each of some bits.
  static void Spread(const uint64_t* row, int64_t first, int64_t count, uint64_t* out) {
    for (int64_t i = 0; i < count;) {
      const uint64_t word = row[(first + i) / 64] >> ((first + i) % 64);
      const int64_t some = std::min(count - i, 64 - (first + i) % 64);
      for (int64_t k = 0; k < some; ++k) out[i + k] = 0 - (word >> k & 1);
      i += some;
    }
  }
  absl::Status Check(const Tensor& bits, const Tensor& a, const Tensor& b, const Tensor& u,
                     const Tensor& v) const {
    const int64_t n = a.NumElements(), factors = multiply_ ? n : 0;
    if (b.NumElements() == n && u.NumElements() == factors && v.NumElements() == factors &&
        bits.NumElements() == cuts_ * ((n + 63) / 64)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError("Select: the sizes do not fit");
  }

  int ring_, width_, factor_width_, cuts_;
  std::vector<Field> fields_;  // beta_j, beta_j lam, beta_j lam_u
  std::vector<int> shifts_;
  std::vector<int64_t> factors_;
  bool multiply_;
  uint64_t mask_;
};

class SelectDealOp : public SelectOp {
 public:
  using SelectOp::SelectOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3),
                 &u1 = context->input(4), &u2 = context->input(5);
    OP_REQUIRES_OK(context, Check(beta, l1, l2, u1, u2));
    const int64_t n = l1.NumElements(), words = (n + 63) / 64;
    Fields message;
    OP_REQUIRES_OK(context, Write(context, call, fields_, n, &message));
    if (n == 0) return;
    const uint64_t *b = Words(beta), *x = Words(l1), *y = Words(l2);
    const uint64_t *p = multiply_ ? Words(u1) : x, *q = multiply_ ? Words(u2) : y;
    Chunks(context, n, 20 * cuts_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t bit[kChunk], value[kChunk];
      for (int j = 0; j < cuts_; ++j) {
        const Piece here = PieceOf(j), next = PieceOf(j + 1);
        Spread(b + j * words, first, count, bit);
        for (int64_t i = 0; i < count; ++i) value[i] = bit[i] & 1;
        message.Put(0, j, first, count, value);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t l = x[first + i], r = y[first + i];
          value[i] = bit[i] & (here(l) + here(r) - next(l) - next(r));
        }
        message.Put(1, j, first, count, value);
        if (!multiply_) continue;
        for (int64_t i = 0; i < count; ++i) value[i] = bit[i] & (p[first + i] + q[first + i]);
        message.Put(2, j, first, count, value);
      }
    });
    message.Record();
  }
};

class SelectShareOp : public SelectOp {
 public:
  explicit SelectShareOp(OpKernelConstruction* c) : SelectOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("drop", &drop_));
    OP_REQUIRES(c, drop_ >= 0 && drop_ < width_, absl::InvalidArgumentError("drop is too large"));
  }
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const Tensor &opened = context->input(1), &m = context->input(2), &part = context->input(3),
                 &um = context->input(4), &upart = context->input(5);
    OP_REQUIRES_OK(context, Check(opened, m, part, um, upart));
    const int64_t n = m.NumElements(), words = (n + 63) / 64;
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, fields_, n, context->input(6), &dealt));
    Tensor *share, *factor;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &share));
    OP_REQUIRES_OK(context, Allocate(context, 1, m.shape(), &factor));
    if (n == 0) return;
    const uint64_t *bits = Words(opened), *masked = Words(m), *own = Words(part);
    const uint64_t *v = multiply_ ? Words(um) : masked, *w = multiply_ ? Words(upart) : own;
    uint64_t *y = Words(share), *u = Words(factor);
    const bool second = call.role == kE2;
    const uint64_t known = second ? ~uint64_t{0} : 0;
    const uint64_t low = width_ == 64 ? ~uint64_t{0} : (uint64_t{1} << width_) - 1;
    const uint64_t up = second ? (uint64_t{1} << drop_) - 1 : 0;
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
        Spread(bits + j * words, first, count, o);
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

 private:
  int drop_;
};

// ---- a product with a factor of a small ring

REGISTER_OP("TfeBench>LiftedProductDeal")
    .Input("call: int64")
    .Input("x1: int64")
    .Input("x2: int64")
    .Input("y1: int64")
    .Input("y2: int64")
    .Output("message: uint8")
    .Attr("ring: int")
    .TENSOR_ATTRS.SetShapeFn(Vectors);

// open: the tensor number of the mask under which the share leaves.
REGISTER_OP("TfeBench>LiftedProductShare")
    .Input("call: int64")
    .Input("x: int64")
    .Input("xpart: int64")
    .Input("y: int64")
    .Input("ypart: int64")
    .Input("dealt: uint8")
    .Output("share: int64")
    .Attr("open: int")
    .Attr("ring: int")
    .TENSOR_ATTRS.SetShapeFn(LikeInput<1>);

class LiftedProductOp : public FieldsOp {
 public:
  explicit LiftedProductOp(OpKernelConstruction* c) : FieldsOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("ring", &ring_));
    OP_REQUIRES(c, ring_ >= 3 && ring_ < 64, absl::InvalidArgumentError("ring must be 3..63"));
    fields_ = {{64}, {64 - ring_}, {64 - ring_}, {64 - ring_}};
    low_ = (uint64_t{1} << ring_) - 1;
  }

 protected:
  static constexpr int kFields = 4;  // lam_x lam, om, t, lam_x t

  // The words of the four inputs of n elements each.
  static absl::Status Operands(OpKernelContext* context, int64_t n, const uint64_t* in[4]) {
    for (int k = 0; k < 4; ++k) {
      if (context->input(1 + k).NumElements() != n) {
        return absl::InvalidArgumentError("LiftedProduct: the sizes do not fit");
      }
      in[k] = Words(context->input(1 + k));
    }
    return absl::OkStatus();
  }

  int ring_;
  uint64_t low_;
  std::vector<Field> fields_;
};

class LiftedProductDealOp : public LiftedProductOp {
 public:
  using LiftedProductOp::LiftedProductOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const int64_t n = context->input(1).NumElements();
    const uint64_t* in[4];
    OP_REQUIRES_OK(context, Operands(context, n, in));
    Fields message;
    OP_REQUIRES_OK(context, Write(context, call, fields_, n, &message));
    if (n == 0) return;
    Chunks(context, n, 30, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t value[kFields][kChunk];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t whole = (in[2][at] & low_) + (in[3][at] & low_);
        const uint64_t lam = whole & low_, top = lam >> (ring_ - 1);
        const uint64_t x = in[0][at] + in[1][at];
        value[0][i] = x * lam;
        value[1][i] = whole >> ring_;
        value[2][i] = top;
        value[3][i] = x & (0 - top);
      }
      for (int f = 0; f < kFields; ++f) message.Put(f, 0, first, count, value[f]);
    });
    message.Record();
  }
};

class LiftedProductShareOp : public LiftedProductOp {
 public:
  explicit LiftedProductShareOp(OpKernelConstruction* c) : LiftedProductOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("open", &open_));
  }
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const int64_t n = context->input(1).NumElements();
    const uint64_t* in[4];
    OP_REQUIRES_OK(context, Operands(context, n, in));
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, fields_, n, context->input(5), &dealt));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, context->input(1).shape(), &out));
    if (n == 0) return;
    PrfStream leaving;
    OP_REQUIRES_OK(context, OwnStream(call, open_, n, &leaving));
    uint64_t* y = Words(out);
    const bool second = call.role == kE2;
    const uint64_t known = second ? ~uint64_t{0} : 0, quarter = uint64_t{1} << (ring_ - 2);
    Chunks(context, n, 30, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[kFields][kChunk], mask[kChunk];
      for (int f = 0; f < kFields; ++f) dealt.Get(f, 0, first, count, given[f]);
      Fill(call, leaving, first, count, mask);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t shifted = (in[2][at] + quarter) & low_;
        const uint64_t p = shifted - quarter, keep = 1 - (shifted >> (ring_ - 1));
        const uint64_t lam = (in[3][at] & low_) - (given[1][i] << ring_);
        const uint64_t x = in[0][at];
        const uint64_t wrap = keep * (x * given[2][i] - given[3][i]);
        y[at] = ((x & known) - in[1][at]) * p - x * lam + given[0][i] + (wrap << ring_) + mask[i];
      }
    });
    dealt.Record();
    call.session->Record(leaving, kMasked, y, n * 8);
  }

 private:
  int open_;
};

REGISTER_CPU("SelectDeal", SelectDealOp);
REGISTER_CPU("SelectShare", SelectShareOp);
REGISTER_CPU("LiftedProductDeal", LiftedProductDealOp);
REGISTER_CPU("LiftedProductShare", LiftedProductShareOp);

}  // namespace
}  // namespace tfe_bench
