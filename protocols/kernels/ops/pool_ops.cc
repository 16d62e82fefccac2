// Pooling: choices between two values of a small ring, and the way back of a gradient to the cells
// of windows that were chosen.
//
// A choice even + b (odd - even) over Z_2^k, b = o ^ beta (o known to E1 and E2, beta to D), needs
// shares of beta and beta lam of the difference mod 2^k: k bits each.
//
// The way back is e v for a chosen cell's bit e and the truncation v = g / 2^f that never fails:
// with c = m + 2^62 known to the evaluators and r = l1 + l2 known to D,
//   v = P + 2^(64-f) W msb(r) - (r >> f),  P = (c >> f) - 2^(62-f),  W = 1 - msb(c),
// so that D deals r >> f and msb(r) once for each window, and beta, beta (r >> f) and beta msb(r)
// for each of its cells.  The message: these five fields in that order, those of msb(r) mod 2^f.
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;

// ---- choices

#define BITS_ATTRS TENSOR_ATTRS.Attr("bits: int")

REGISTER_OP("TfeBench>SmallSelectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("even_l1: int64")
    .Input("even_l2: int64")
    .Input("odd_l1: int64")
    .Input("odd_l2: int64")
    .Output("message: uint8")
    .BITS_ATTRS.SetShapeFn(Vectors);

// This evaluator's share under the mask `tensor` + 2, k bits per element.
REGISTER_OP("TfeBench>SmallSelectShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("even_m: int64")
    .Input("even_part: int64")
    .Input("odd_m: int64")
    .Input("odd_part: int64")
    .Input("dealt: uint8")
    .Output("message: uint8")
    .BITS_ATTRS.SetShapeFn(Vectors);

// The sums mod 2^width of packed words.
REGISTER_OP("TfeBench>AddPacked")
    .Input("own: uint8")
    .Input("other: uint8")
    .Input("shape: int64")
    .Output("sum: int64")
    .Attr("width: int")
    .SetShapeFn([](InferenceContext* c) {
      tensorflow::shape_inference::ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2, &shape));
      c->set_output(0, shape);
      return absl::OkStatus();
    });

class SmallOp : public FieldsOp {
 public:
  explicit SmallOp(OpKernelConstruction* c) : FieldsOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("bits", &bits_));
    OP_REQUIRES(c, bits_ >= 1 && bits_ <= 64, absl::InvalidArgumentError("bits must be 1..64"));
  }

 protected:
  static absl::Status Sizes(bool fit) {
    if (fit) return absl::OkStatus();
    return absl::InvalidArgumentError("TfeBench: the sizes do not fit each other");
  }

  int bits_;
};

class SmallSelectOp : public SmallOp {
 public:
  explicit SmallSelectOp(OpKernelConstruction* c) : SmallOp(c), fields_(2, {bits_}) {}

 protected:
  // Packed bits and four values of n elements each.
  static absl::Status Check(OpKernelContext* context, int64_t n) {
    bool fit = context->input(1).NumElements() == (n + 63) / 64;
    for (int i = 2; i < 6; ++i) fit = fit && context->input(i).NumElements() == n;
    return Sizes(fit);
  }

  std::vector<Field> fields_;  // beta, beta lam
};

class SmallSelectDealOp : public SmallSelectOp {
 public:
  using SmallSelectOp::SmallSelectOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const int64_t n = context->input(2).NumElements();
    OP_REQUIRES_OK(context, Check(context, n));
    Fields message;
    OP_REQUIRES_OK(context, Write(context, call, fields_, n, &message));
    if (n == 0) return;
    const uint64_t *beta = Words(context->input(1)), *e1 = Words(context->input(2)),
                   *e2 = Words(context->input(3)), *o1 = Words(context->input(4)),
                   *o2 = Words(context->input(5));
    Chunks(context, n, 8, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t bit[kChunk], flipped[kChunk];
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t lam = (o1[at] + o2[at]) - (e1[at] + e2[at]);
        bit[i] = beta[at / 64] >> (at % 64) & 1;
        flipped[i] = (0 - bit[i]) & lam;
      }
      message.Put(0, 0, first, count, bit);
      message.Put(1, 0, first, count, flipped);
    });
    message.Record();
  }
};

class SmallSelectShareOp : public SmallSelectOp {
 public:
  using SmallSelectOp::SmallSelectOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const int64_t n = context->input(2).NumElements(), bytes = PackedBytes(n, bits_);
    OP_REQUIRES_OK(context, Check(context, n));
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, fields_, n, context->input(6), &dealt));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {bytes}, &out));
    if (n == 0) return;
    PrfStream leaving;
    OP_REQUIRES_OK(context, OwnStream(call, attrs_.tensor + 2, n, &leaving));
    const uint64_t *opened = Words(context->input(1)), *even_m = Words(context->input(2)),
                   *even_l = Words(context->input(3)), *odd_m = Words(context->input(4)),
                   *odd_l = Words(context->input(5));
    uint8_t* to = out->flat<uint8_t>().data();
    const uint64_t second = call.role == kE2 ? ~uint64_t{0} : 0;
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[2][kChunk], mask[kChunk];
      for (int p = 0; p < 2; ++p) dealt.Get(p, 0, first, count, given[p]);
      Fill(call, leaving, first, count, mask);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t o = 0 - (opened[at / 64] >> (at % 64) & 1);
        const uint64_t m = odd_m[at] - even_m[at], l = odd_l[at] - even_l[at];
        const uint64_t flipped = m * given[0][i] - given[1][i];  // share of beta (odd - even)
        mask[i] += ((even_m[at] & second) - even_l[at]) + (((m & second) - l) & o) +
                   ((flipped ^ o) - o);
      }
      PackRange(mask, count, bits_, to + first * bits_ / 8, 0, count);
    });
    dealt.Record();
    call.session->Record(leaving, kMasked, to, bytes);
  }
};

class AddPackedOp : public Kernel {
 public:
  explicit AddPackedOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c, width_ >= 1 && width_ <= 64, absl::InvalidArgumentError("width must be 1..64"));
  }
  void Work(OpKernelContext* context) override {
    TensorShape shape;
    OP_REQUIRES_OK(context, ShapeFrom(context->input(2), &shape));
    const int64_t n = shape.num_elements();
    const Tensor &own = context->input(0), &other = context->input(1);
    OP_REQUIRES(context,
                own.NumElements() == PackedBytes(n, width_) &&
                    other.NumElements() == own.NumElements(),
                absl::InvalidArgumentError("AddPacked: the shape does not fit the bytes"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, shape, &out));
    const uint8_t *a = own.flat<uint8_t>().data(), *b = other.flat<uint8_t>().data();
    const uint64_t ring = width_ == 64 ? ~uint64_t{0} : (uint64_t{1} << width_) - 1;
    uint64_t* to = Words(out);
    Chunks(context, n, 6, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t x[kChunk], y[kChunk];
      UnpackRange(a + first * width_ / 8, count, width_, x, 0, count);
      UnpackRange(b + first * width_ / 8, count, width_, y, 0, count);
      for (int64_t i = 0; i < count; ++i) to[first + i] = (x[i] + y[i]) & ring;
    });
  }

 private:
  int width_;
};

// ---- the way back

// l1, l2 of a gradient, one for each window; beta [cells, width] packed, width a multiple of 64.
REGISTER_OP("TfeBench>RouteDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("l1: int64")
    .Input("l2: int64")
    .Output("message: uint8")
    .Attr("cells: int")
    .Attr("width: int")
    .BITS_ATTRS.SetShapeFn(Vectors);

// The evaluators' shares [cells, width] of what each cell gets.
REGISTER_OP("TfeBench>RouteShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("m: int64")
    .Input("dealt: uint8")
    .Output("share: int64")
    .Attr("cells: int")
    .Attr("width: int")
    .BITS_ATTRS.SetShapeFn([](InferenceContext* c) {
      int64_t cells, width;
      TF_RETURN_IF_ERROR(c->GetAttr("cells", &cells));
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      TF_RETURN_IF_ERROR(CheckSizes({cells, width}));
      c->set_output(0, c->Matrix(cells, width));
      return absl::OkStatus();
    });

class RouteOp : public SmallOp {
 public:
  explicit RouteOp(OpKernelConstruction* c) : SmallOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("cells", &cells_));
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c,
                cells_ >= 1 && CheckSizes({cells_, width_}).ok() && width_ % 64 == 0 && bits_ <= 62,
                absl::InvalidArgumentError("width must be a multiple of 64, bits 1..62"));
    fields_ = {{64}, {bits_}, {64, cells_}, {64, cells_}, {bits_, cells_}};
  }

 protected:
  enum Part { kShifted, kTop, kBeta, kBetaShifted, kBetaTop };

  bool Fit(const Tensor& bits, const Tensor& g) const {
    return bits.NumElements() == cells_ * width_ / 64 && g.NumElements() <= width_ &&
           width_ - g.NumElements() < 64;
  }

  int64_t cells_, width_;
  std::vector<Field> fields_;
};

class RouteDealOp : public RouteOp {
 public:
  using RouteOp::RouteOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsDealer(context, &call));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3);
    const int64_t n = l1.NumElements();
    OP_REQUIRES_OK(context, Sizes(Fit(beta, l1) && l2.NumElements() == n));
    Fields message;
    OP_REQUIRES_OK(context, Write(context, call, fields_, width_, &message));
    const uint64_t *b = Words(beta), *x = Words(l1), *y = Words(l2);
    Chunks(context, width_, 8 * (2 + 3 * cells_), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t shifted[kChunk], top[kChunk], value[kChunk];
      const auto put = [&](Part part, int64_t cell, auto value_of) {
        for (int64_t i = 0; i < count; ++i) value[i] = value_of(i);
        message.Put(part, cell, first, count, value);
      };
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t r = first + i < n ? x[first + i] + y[first + i] : 0;
        shifted[i] = r >> bits_;
        top[i] = r >> 63;
      }
      put(kShifted, 0, [&](int64_t i) { return shifted[i]; });
      put(kTop, 0, [&](int64_t i) { return top[i]; });
      for (int64_t cell = 0; cell < cells_; ++cell) {
        const int64_t at = cell * width_ + first;
        const auto bit = [&](int64_t i) { return 0 - (b[(at + i) / 64] >> ((at + i) % 64) & 1); };
        put(kBeta, cell, [&](int64_t i) { return bit(i) & 1; });
        put(kBetaShifted, cell, [&](int64_t i) { return bit(i) & shifted[i]; });
        put(kBetaTop, cell, [&](int64_t i) { return bit(i) & top[i]; });
      }
    });
    message.Record();
  }
};

class RouteShareOp : public RouteOp {
 public:
  using RouteOp::RouteOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, AsEvaluator(context, &call));
    const Tensor &opened = context->input(1), &m = context->input(2);
    const int64_t n = m.NumElements();
    OP_REQUIRES_OK(context, Sizes(Fit(opened, m)));
    Fields dealt;
    OP_REQUIRES_OK(context, Read(call, fields_, width_, context->input(3), &dealt));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {cells_, width_}, &out));
    const uint64_t *o = Words(opened), *masked = Words(m);
    uint64_t* y = Words(out);
    const uint64_t second = call.role == kE2 ? ~uint64_t{0} : 0;
    const int high = 64 - bits_;
    Chunks(context, width_, 10 * (2 + 3 * cells_), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t known[kChunk], low[kChunk], v[kChunk], given[3][kChunk];
      dealt.Get(kShifted, 0, first, count, given[0]);
      dealt.Get(kTop, 0, first, count, given[1]);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t c = (first + i < n ? masked[first + i] : 0) + (uint64_t{1} << 62);
        known[i] = (c >> bits_) - (uint64_t{1} << (62 - bits_));
        low[i] = (c >> 63) - 1;  // all ones where the top bit is 0
        v[i] = (known[i] & second) - given[0][i] + ((given[1][i] & low[i]) << high);
      }
      for (int64_t cell = 0; cell < cells_; ++cell) {
        const int64_t at = cell * width_ + first;
        for (int f = 0; f < 3; ++f) dealt.Get(kBeta + f, cell, first, count, given[f]);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t bit = 0 - (o[(at + i) / 64] >> ((at + i) % 64) & 1);
          const uint64_t flipped =
              known[i] * given[0][i] - given[1][i] + ((given[2][i] & low[i]) << high);
          y[at + i] = (v[i] & bit) + ((flipped ^ bit) - bit);
        }
      }
    });
    dealt.Record();
  }
};

REGISTER_CPU("SmallSelectDeal", SmallSelectDealOp);
REGISTER_CPU("SmallSelectShare", SmallSelectShareOp);
REGISTER_CPU("AddPacked", AddPackedOp);
REGISTER_CPU("RouteDeal", RouteDealOp);
REGISTER_CPU("RouteShare", RouteShareOp);

}  // namespace
}  // namespace tfe_bench
