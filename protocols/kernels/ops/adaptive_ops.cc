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
#include <string>
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/chunks.h"
#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

constexpr int kMaxFields = 4, kMaxCuts = 15;

// What one mask pads: `rows` times n elements of `width` bits, each row on whole bytes.
struct Field {
  int width;
  int64_t rows;
};

class FieldsOp : public Kernel {
 public:
  explicit FieldsOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("site", &site_));
    OP_REQUIRES_OK(c, c->GetAttr("tensor", &tensor_));
    OP_REQUIRES_OK(c, c->GetAttr("dealer", &dealer_));
  }

 protected:
  int64_t Offset(size_t field, int64_t n) const {
    int64_t bytes = 0;
    for (size_t f = 0; f < field; ++f) bytes += fields_[f].rows * PackedBytes(n, fields_[f].width);
    return bytes;
  }
  int64_t MessageBytes(int64_t n) const { return Offset(fields_.size(), n); }
  // A row's mask starts on a whole block.
  static int64_t Stride(int64_t n) { return (n + 1) / 2 * 2; }
  absl::Status Streams(const Call& call, int64_t n, PrfStream* streams) const {
    for (size_t f = 0; f < fields_.size(); ++f) {
      TF_RETURN_IF_ERROR(
          ToStatus(call.session->Stream(kK1, dealer_, site_, call.step, call.iteration,
                                        tensor_ + static_cast<int>(f),
                                        fields_[f].rows * Stride(n) * 8, &streams[f])));
    }
    return absl::OkStatus();
  }
  // The dealer: values - mask, packed; `values` is overwritten.
  void Put(const Call& call, const PrfStream& stream, size_t field, int64_t row, int64_t n,
           int64_t first, int64_t count, uint64_t* values, uint8_t* message) const {
    alignas(64) uint64_t mask[kChunk];
    const int width = fields_[field].width;
    Fill(call, stream, row * Stride(n) + first, count, mask);
    for (int64_t i = 0; i < count; ++i) values[i] -= mask[i];
    uint8_t* to = message + Offset(field, n) + row * PackedBytes(n, width);
    PackRange(values, count, width, to + first * width / 8, 0, count);
  }
  // An evaluator's share of a row: E1's from the mask, E2's from the message.
  void Get(const Call& call, bool second, const PrfStream& stream, size_t field, int64_t row,
           int64_t n, int64_t first, int64_t count, const uint8_t* message, uint64_t* out) const {
    if (!second) return Fill(call, stream, row * Stride(n) + first, count, out);
    const int width = fields_[field].width;
    const uint8_t* from = message + Offset(field, n) + row * PackedBytes(n, width);
    UnpackRange(from + first * width / 8, count, width, out, 0, count);
  }
  void RecordSent(const Call& call, const PrfStream* streams, int64_t n,
                  const uint8_t* message) const {
    for (size_t f = 0; f < fields_.size(); ++f) {
      call.session->Record(streams[f], kMasked, message + Offset(f, n),
                           Offset(f + 1, n) - Offset(f, n));
    }
  }
  void RecordShares(const Call& call, const PrfStream* streams, int64_t n) const {
    for (size_t f = 0; f < fields_.size(); ++f) {
      RecordShare(call, streams[f], fields_[f].rows * Stride(n));
    }
  }

  int site_, tensor_, dealer_;
  std::vector<Field> fields_;
};

#define FIELD_ATTRS            \
  Attr("site: int")            \
      .Attr("tensor: int")     \
      .Attr("dealer: int")

// ---- selection

#define SELECT_ATTRS               \
  FIELD_ATTRS                      \
      .Attr("ring: int")           \
      .Attr("shifts: list(int)")   \
      .Attr("factors: list(int)")  \
      .Attr("width: int")          \
      .Attr("factor_width: int")   \
      .Attr("multiply: bool")

REGISTER_OP("TfeBench>SelectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Input("u1: int64")
    .Input("u2: int64")
    .Output("message: uint8")
    .SELECT_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

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
    .SELECT_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(2));
      c->set_output(1, c->input(2));
      return absl::OkStatus();
    });

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
    OP_REQUIRES_OK(context, FindCall(context, &call));
    OP_REQUIRES(context, call.session->RoleOf(dealer_) == kDealer,
                absl::InternalError("only the dealer deals"));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3),
                 &u1 = context->input(4), &u2 = context->input(5);
    OP_REQUIRES_OK(context, Check(beta, l1, l2, u1, u2));
    const int64_t n = l1.NumElements(), words = (n + 63) / 64;
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {MessageBytes(n)}, &out));
    if (n == 0) return;
    PrfStream streams[kMaxFields];
    OP_REQUIRES_OK(context, Streams(call, n, streams));
    const uint64_t *b = Words(beta), *x = Words(l1), *y = Words(l2);
    const uint64_t *p = multiply_ ? Words(u1) : x, *q = multiply_ ? Words(u2) : y;
    uint8_t* to = out->flat<uint8_t>().data();
    Chunks(context, n, 20 * cuts_, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t bit[kChunk], value[kChunk];
      for (int j = 0; j < cuts_; ++j) {
        const Piece here = PieceOf(j), next = PieceOf(j + 1);
        Spread(b + j * words, first, count, bit);
        for (int64_t i = 0; i < count; ++i) value[i] = bit[i] & 1;
        Put(call, streams[0], 0, j, n, first, count, value, to);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t l = x[first + i], r = y[first + i];
          value[i] = bit[i] & (here(l) + here(r) - next(l) - next(r));
        }
        Put(call, streams[1], 1, j, n, first, count, value, to);
        if (!multiply_) continue;
        for (int64_t i = 0; i < count; ++i) value[i] = bit[i] & (p[first + i] + q[first + i]);
        Put(call, streams[2], 2, j, n, first, count, value, to);
      }
    });
    RecordSent(call, streams, n, to);
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
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Role role = call.session->RoleOf(dealer_);
    OP_REQUIRES(context, role != kDealer, absl::InternalError("the dealer has no share"));
    const Tensor &opened = context->input(1), &m = context->input(2), &part = context->input(3),
                 &um = context->input(4), &upart = context->input(5), &dealt = context->input(6);
    OP_REQUIRES_OK(context, Check(opened, m, part, um, upart));
    const int64_t n = m.NumElements(), words = (n + 63) / 64;
    OP_REQUIRES(context, role == kE1 || dealt.NumElements() == MessageBytes(n),
                absl::InvalidArgumentError("Select: a dealt message has the wrong size"));
    Tensor *share, *factor;
    OP_REQUIRES_OK(context, Allocate(context, 0, m.shape(), &share));
    OP_REQUIRES_OK(context, Allocate(context, 1, m.shape(), &factor));
    if (n == 0) return;
    PrfStream streams[kMaxFields];
    if (role == kE1) OP_REQUIRES_OK(context, Streams(call, n, streams));
    const uint64_t *bits = Words(opened), *masked = Words(m), *own = Words(part);
    const uint64_t *v = multiply_ ? Words(um) : masked, *w = multiply_ ? Words(upart) : own;
    const uint8_t* from = dealt.flat<uint8_t>().data();
    uint64_t *y = Words(share), *u = Words(factor);
    const bool second = role == kE2;
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
        Get(call, second, streams[0], 0, j, n, first, count, from, beta);
        Get(call, second, streams[1], 1, j, n, first, count, from, product);
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
        Get(call, second, streams[2], 2, j, n, first, count, from, product);
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
    if (!second) RecordShares(call, streams, n);
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
    .FIELD_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

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
    .FIELD_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    });

class LiftedProductOp : public FieldsOp {
 public:
  explicit LiftedProductOp(OpKernelConstruction* c) : FieldsOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("ring", &ring_));
    OP_REQUIRES(c, ring_ >= 3 && ring_ < 64, absl::InvalidArgumentError("ring must be 3..63"));
    fields_ = {{64, 1}, {64 - ring_, 1}, {64 - ring_, 1}, {64 - ring_, 1}};
    low_ = (uint64_t{1} << ring_) - 1;
  }

 protected:
  int ring_;
  uint64_t low_;
};

class LiftedProductDealOp : public LiftedProductOp {
 public:
  using LiftedProductOp::LiftedProductOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    OP_REQUIRES(context, call.session->RoleOf(dealer_) == kDealer,
                absl::InternalError("only the dealer deals"));
    const int64_t n = context->input(1).NumElements();
    const uint64_t* in[4];
    for (int k = 0; k < 4; ++k) {
      OP_REQUIRES(context, context->input(1 + k).NumElements() == n,
                  absl::InvalidArgumentError("LiftedProduct: the sizes do not fit"));
      in[k] = Words(context->input(1 + k));
    }
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {MessageBytes(n)}, &out));
    if (n == 0) return;
    PrfStream streams[kMaxFields];
    OP_REQUIRES_OK(context, Streams(call, n, streams));
    uint8_t* to = out->flat<uint8_t>().data();
    Chunks(context, n, 30, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t value[kMaxFields][kChunk];
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
      for (int f = 0; f < kMaxFields; ++f) {
        Put(call, streams[f], f, 0, n, first, count, value[f], to);
      }
    });
    RecordSent(call, streams, n, to);
  }
};

class LiftedProductShareOp : public LiftedProductOp {
 public:
  explicit LiftedProductShareOp(OpKernelConstruction* c) : LiftedProductOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("open", &open_));
  }
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Role role = call.session->RoleOf(dealer_);
    OP_REQUIRES(context, role != kDealer, absl::InternalError("the dealer has no share"));
    const int64_t n = context->input(1).NumElements();
    const uint64_t* in[4];
    for (int k = 0; k < 4; ++k) {
      OP_REQUIRES(context, context->input(1 + k).NumElements() == n,
                  absl::InvalidArgumentError("LiftedProduct: the sizes do not fit"));
      in[k] = Words(context->input(1 + k));
    }
    const Tensor& dealt = context->input(5);
    OP_REQUIRES(context, role == kE1 || dealt.NumElements() == MessageBytes(n),
                absl::InvalidArgumentError("LiftedProduct: a dealt message has the wrong size"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, context->input(1).shape(), &out));
    if (n == 0) return;
    PrfStream streams[kMaxFields], leaving;
    if (role == kE1) OP_REQUIRES_OK(context, Streams(call, n, streams));
    OP_REQUIRES_OK(context, ToStatus(call.session->Stream(
                                role == kE1 ? kK1 : kK2, dealer_, site_, call.step, call.iteration,
                                open_, n * 8, &leaving)));
    const uint8_t* from = dealt.flat<uint8_t>().data();
    uint64_t* y = Words(out);
    const bool second = role == kE2;
    const uint64_t known = second ? ~uint64_t{0} : 0, quarter = uint64_t{1} << (ring_ - 2);
    Chunks(context, n, 30, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[kMaxFields][kChunk], mask[kChunk];
      for (int f = 0; f < kMaxFields; ++f) {
        Get(call, second, streams[f], f, 0, n, first, count, from, given[f]);
      }
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
    if (!second) RecordShares(call, streams, n);
    call.session->Record(leaving, kMasked, y, n * 8);
  }

 private:
  int open_;
};

REGISTER_KERNEL_BUILDER(Name("TfeBench>SelectDeal").Device(tensorflow::DEVICE_CPU), SelectDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>SelectShare").Device(tensorflow::DEVICE_CPU), SelectShareOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>LiftedProductDeal").Device(tensorflow::DEVICE_CPU),
                        LiftedProductDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>LiftedProductShare").Device(tensorflow::DEVICE_CPU),
                        LiftedProductShareOp);

}  // namespace
}  // namespace tfe_bench
