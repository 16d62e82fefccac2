// Pooling: cells of windows, choices between two values of a small ring, and the way back of a
// gradient to the cells that were chosen.
//
// A choice even + b (odd - even) over Z_2^k, b = o ^ beta (o known to E1 and E2, beta to D), needs
// shares of beta and beta lam of the difference mod 2^k: k bits each.
//
// The way back is e v for a chosen cell's bit e and the truncation v = g / 2^f that never fails:
// with c = m + 2^62 known to the evaluators and r = l1 + l2 known to D,
//   v = P + 2^(64-f) W msb(r) - (r >> f),  P = (c >> f) - 2^(62-f),  W = 1 - msb(c),
// so that D deals r >> f and msb(r) once for each window, and beta, beta (r >> f) and beta msb(r)
// for each of its cells.  The message: these five fields in that order, those of msb(r) mod 2^f.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/chunks.h"
#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using ::tensorflow::shape_inference::InferenceContext;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// ---- cells

// rows and columns: for each cell of a window along that axis its place in each window, cell by
// cell; cells: which of them, counted row by row, in the order of the result.
#define CELL_ATTRS                \
  Attr("image: list(int)")        \
      .Attr("rows: list(int)")    \
      .Attr("columns: list(int)") \
      .Attr("windows: list(int)") \
      .Attr("cells: list(int)")   \
      .Attr("width: int")

// Images [n, h, w, channels] -> [cells, width]: windows in row-major order, zeros after the last.
REGISTER_OP("TfeBench>TakeCells")
    .Input("x: int64")
    .Output("y: int64")
    .CELL_ATTRS.SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> cells;
      int64_t width;
      TF_RETURN_IF_ERROR(c->GetAttr("cells", &cells));
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      TF_RETURN_IF_ERROR(CheckSizes({static_cast<int64_t>(cells.size()), width}));
      c->set_output(0, c->Matrix(cells.size(), width));
      return absl::OkStatus();
    });

// The transpose of that map: [cells, width] -> images, each place the sum of what lies on it.
REGISTER_OP("TfeBench>PlaceCells")
    .Input("x: int64")
    .Output("y: int64")
    .CELL_ATTRS.SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> image;
      TF_RETURN_IF_ERROR(c->GetAttr("image", &image));
      if (image.size() != 4) return absl::InvalidArgumentError("an image has 4 sizes");
      TF_RETURN_IF_ERROR(CheckSizes(image));
      c->set_output(0, c->MakeShape({c->MakeDim(image[0]), c->MakeDim(image[1]),
                                     c->MakeDim(image[2]), c->MakeDim(image[3])}));
      return absl::OkStatus();
    });

template <bool kTake>
class CellsOp : public Kernel {
 public:
  explicit CellsOp(OpKernelConstruction* c) : Kernel(c) {
    std::vector<int64_t> image, windows;
    OP_REQUIRES_OK(c, c->GetAttr("image", &image));
    OP_REQUIRES_OK(c, c->GetAttr("windows", &windows));
    OP_REQUIRES_OK(c, c->GetAttr("rows", &rows_));
    OP_REQUIRES_OK(c, c->GetAttr("columns", &columns_));
    OP_REQUIRES_OK(c, c->GetAttr("cells", &cells_));
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    bool fits = image.size() == 4 && windows.size() == 2 && windows[0] > 0 && windows[1] > 0 &&
                CheckSizes(image).ok() &&
                CheckSizes({image[0], windows[0], windows[1], image[3]}).ok() &&
                CheckSizes({static_cast<int64_t>(cells_.size()), width_}).ok();
    if (fits) {
      n_ = image[0], h_ = image[1], w_ = image[2], c_ = image[3];
      down_ = windows[0], across_ = windows[1];
      const int64_t kernel_h = static_cast<int64_t>(rows_.size()) / down_;
      kernel_w_ = static_cast<int64_t>(columns_.size()) / across_;
      const auto within = [](const std::vector<int64_t>& v, int64_t end) {
        return std::all_of(v.begin(), v.end(), [end](int64_t i) { return i >= 0 && i < end; });
      };
      fits = kernel_h * down_ == static_cast<int64_t>(rows_.size()) &&
             kernel_w_ * across_ == static_cast<int64_t>(columns_.size()) && within(rows_, h_) &&
             within(columns_, w_) && within(cells_, kernel_h * kernel_w_) &&
             width_ >= n_ * down_ * across_ * c_;
    }
    OP_REQUIRES(c, fits, absl::InvalidArgumentError("the cells do not fit the image"));
  }
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    TensorShape image, cells;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape({n_, h_, w_, c_}, &image));
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(
                                {static_cast<int64_t>(cells_.size()), width_}, &cells));
    OP_REQUIRES(context, x.shape() == (kTake ? image : cells),
                absl::InvalidArgumentError("TfeBench: the cells do not fit the image"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, kTake ? cells : image, &out));
    const uint64_t* from = Words(x);
    uint64_t* to = Words(out);
    if (kTake) {
      const int64_t used = n_ * down_ * across_ * c_;
      for (size_t i = 0; i < cells_.size(); ++i) {
        std::fill_n(to + i * width_ + used, width_ - used, 0);
      }
    }
    const int64_t each = down_ * across_ * c_ * static_cast<int64_t>(cells_.size());
    ParallelRange(context, n_, each + 1, [&](int64_t begin, int64_t end) {
      if (!kTake) std::fill(to + begin * h_ * w_ * c_, to + end * h_ * w_ * c_, 0);
      for (int64_t n = begin; n < end; ++n) {
        for (size_t i = 0; i < cells_.size(); ++i) OneImage(n, i, from, to);
      }
    });
  }

 private:
  void OneImage(int64_t n, size_t i, const uint64_t* from, uint64_t* to) const {
    const int64_t* rows = &rows_[cells_[i] / kernel_w_ * down_];
    const int64_t* columns = &columns_[cells_[i] % kernel_w_ * across_];
    const int64_t base = i * width_ + n * down_ * across_ * c_;
    for (int64_t r = 0; r < down_; ++r) {
      const int64_t line = (n * h_ + rows[r]) * w_;
      for (int64_t q = 0; q < across_; ++q) {
        const int64_t pixel = (line + columns[q]) * c_, cell = base + (r * across_ + q) * c_;
        if (kTake) {
          std::copy_n(from + pixel, c_, to + cell);
        } else {
          for (int64_t c = 0; c < c_; ++c) to[pixel + c] += from[cell + c];
        }
      }
    }
  }

  int64_t n_, h_, w_, c_, down_, across_, kernel_w_, width_;
  std::vector<int64_t> rows_, columns_, cells_;
};

// ---- choices

#define NAMED_ATTRS        \
  Attr("site: int")        \
      .Attr("tensor: int") \
      .Attr("dealer: int") \
      .Attr("bits: int")

REGISTER_OP("TfeBench>SmallSelectDeal")
    .Input("call: int64")
    .Input("beta: int64")
    .Input("even_l1: int64")
    .Input("even_l2: int64")
    .Input("odd_l1: int64")
    .Input("odd_l2: int64")
    .Output("message: uint8")
    .NAMED_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

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
    .NAMED_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

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

class NamedOp : public Kernel {
 public:
  explicit NamedOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("site", &site_));
    OP_REQUIRES_OK(c, c->GetAttr("tensor", &tensor_));
    OP_REQUIRES_OK(c, c->GetAttr("dealer", &dealer_));
    OP_REQUIRES_OK(c, c->GetAttr("bits", &bits_));
    OP_REQUIRES(c, bits_ >= 1 && bits_ <= 64, absl::InvalidArgumentError("bits must be 1..64"));
  }

 protected:
  absl::Status Stream(const Call& call, KeyRole key, int tensor, int64_t n,
                      PrfStream* stream) const {
    return ToStatus(call.session->Stream(key, dealer_, site_, call.step, call.iteration,
                                         tensor_ + tensor, n * 8, stream));
  }
  static absl::Status Sizes(bool fit) {
    if (fit) return absl::OkStatus();
    return absl::InvalidArgumentError("TfeBench: the sizes do not fit each other");
  }

  int site_, tensor_, dealer_, bits_;
};

class SmallSelectDealOp : public NamedOp {
 public:
  using NamedOp::NamedOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    OP_REQUIRES(context, call.session->RoleOf(dealer_) == kDealer,
                absl::InternalError("only the dealer deals"));
    const int64_t n = context->input(2).NumElements();
    bool fit = context->input(1).NumElements() == (n + 63) / 64;
    for (int i = 2; i < 6; ++i) fit = fit && context->input(i).NumElements() == n;
    OP_REQUIRES_OK(context, Sizes(fit));
    Tensor* out;
    const int64_t field = PackedBytes(n, bits_);
    OP_REQUIRES_OK(context, Allocate(context, 0, {2 * field}, &out));
    if (n == 0) return;
    PrfStream streams[2];
    for (int p = 0; p < 2; ++p) OP_REQUIRES_OK(context, Stream(call, kK1, p, n, &streams[p]));
    const uint64_t *beta = Words(context->input(1)), *e1 = Words(context->input(2)),
                   *e2 = Words(context->input(3)), *o1 = Words(context->input(4)),
                   *o2 = Words(context->input(5));
    uint8_t* to = out->flat<uint8_t>().data();
    Chunks(context, n, 8, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t mask[2][kChunk];
      for (int p = 0; p < 2; ++p) Fill(call, streams[p], first, count, mask[p]);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = first + i;
        const uint64_t b = beta[at / 64] >> (at % 64) & 1;
        const uint64_t lam = (o1[at] + o2[at]) - (e1[at] + e2[at]);
        mask[0][i] = b - mask[0][i];
        mask[1][i] = ((0 - b) & lam) - mask[1][i];
      }
      for (int p = 0; p < 2; ++p) {
        PackRange(mask[p], count, bits_, to + p * field + first * bits_ / 8, 0, count);
      }
    });
    for (int p = 0; p < 2; ++p) call.session->Record(streams[p], kMasked, to + p * field, field);
  }
};

class SmallSelectShareOp : public NamedOp {
 public:
  using NamedOp::NamedOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Role role = call.session->RoleOf(dealer_);
    OP_REQUIRES(context, role != kDealer, absl::InternalError("the dealer has no share"));
    const int64_t n = context->input(2).NumElements(), field = PackedBytes(n, bits_);
    const Tensor& dealt = context->input(6);
    bool fit = context->input(1).NumElements() == (n + 63) / 64;
    for (int i = 2; i < 6; ++i) fit = fit && context->input(i).NumElements() == n;
    OP_REQUIRES_OK(context, Sizes(fit && (role == kE1 || dealt.NumElements() == 2 * field)));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {field}, &out));
    if (n == 0) return;
    PrfStream streams[2], leaving;
    for (int p = 0; p < 2 && role == kE1; ++p) {
      OP_REQUIRES_OK(context, Stream(call, kK1, p, n, &streams[p]));
    }
    OP_REQUIRES_OK(context, Stream(call, role == kE1 ? kK1 : kK2, 2, n, &leaving));
    const uint64_t *opened = Words(context->input(1)), *even_m = Words(context->input(2)),
                   *even_l = Words(context->input(3)), *odd_m = Words(context->input(4)),
                   *odd_l = Words(context->input(5));
    const uint8_t* from = dealt.flat<uint8_t>().data();
    uint8_t* to = out->flat<uint8_t>().data();
    const uint64_t second = role == kE2 ? ~uint64_t{0} : 0;
    Chunks(context, n, 12, [&](int64_t first, int64_t count) {
      alignas(64) uint64_t given[2][kChunk], mask[kChunk];
      for (int p = 0; p < 2; ++p) {
        if (role == kE1) {
          Fill(call, streams[p], first, count, given[p]);
        } else {
          UnpackRange(from + p * field + first * bits_ / 8, count, bits_, given[p], 0, count);
        }
      }
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
    if (role == kE1) {
      for (const PrfStream& stream : streams) RecordShare(call, stream, n);
    }
    call.session->Record(leaving, kMasked, to, field);
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
    .NAMED_ATTRS.SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

// The evaluators' shares [cells, width] of what each cell gets.
REGISTER_OP("TfeBench>RouteShare")
    .Input("call: int64")
    .Input("opened: int64")
    .Input("m: int64")
    .Input("dealt: uint8")
    .Output("share: int64")
    .Attr("cells: int")
    .Attr("width: int")
    .NAMED_ATTRS.SetShapeFn([](InferenceContext* c) {
      int64_t cells, width;
      TF_RETURN_IF_ERROR(c->GetAttr("cells", &cells));
      TF_RETURN_IF_ERROR(c->GetAttr("width", &width));
      TF_RETURN_IF_ERROR(CheckSizes({cells, width}));
      c->set_output(0, c->Matrix(cells, width));
      return absl::OkStatus();
    });

class RouteOp : public NamedOp {
 public:
  explicit RouteOp(OpKernelConstruction* c) : NamedOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("cells", &cells_));
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c,
                cells_ >= 1 && CheckSizes({cells_, width_}).ok() && width_ % 64 == 0 && bits_ <= 62,
                absl::InvalidArgumentError("width must be a multiple of 64, bits 1..62"));
  }

 protected:
  static constexpr int kFields = 5;
  enum Field { kShifted, kTop, kBeta, kBetaShifted, kBetaTop };

  int64_t CountOf(int field) const { return field < kBeta ? width_ : cells_ * width_; }
  int WidthOf(int field) const { return field == kTop || field == kBetaTop ? bits_ : 64; }
  int64_t BytesOf(int field) const { return PackedBytes(CountOf(field), WidthOf(field)); }
  int64_t Offset(int field) const {
    int64_t offset = 0;
    for (int f = 0; f < field; ++f) offset += BytesOf(f);
    return offset;
  }
  absl::Status Streams(const Call& call, PrfStream* streams) const {
    for (int f = 0; f < kFields; ++f) {
      TF_RETURN_IF_ERROR(Stream(call, kK1, f, CountOf(f), &streams[f]));
    }
    return absl::OkStatus();
  }
  bool Fit(const Tensor& bits, const Tensor& g) const {
    return bits.NumElements() == cells_ * width_ / 64 && g.NumElements() <= width_ &&
           width_ - g.NumElements() < 64;
  }

  int64_t cells_, width_;
};

class RouteDealOp : public RouteOp {
 public:
  using RouteOp::RouteOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    OP_REQUIRES(context, call.session->RoleOf(dealer_) == kDealer,
                absl::InternalError("only the dealer deals"));
    const Tensor &beta = context->input(1), &l1 = context->input(2), &l2 = context->input(3);
    const int64_t n = l1.NumElements();
    OP_REQUIRES_OK(context, Sizes(Fit(beta, l1) && l2.NumElements() == n));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {Offset(kFields)}, &out));
    PrfStream streams[kFields];
    OP_REQUIRES_OK(context, Streams(call, streams));
    const uint64_t *b = Words(beta), *x = Words(l1), *y = Words(l2);
    uint8_t* to = out->flat<uint8_t>().data();
    Chunks(context, width_, 8 * (2 + 3 * cells_), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t shifted[kChunk], top[kChunk], mask[kChunk];
      const auto put = [&](int field, int64_t at) {
        const int width = WidthOf(field);
        PackRange(mask, count, width, to + Offset(field) + at * width / 8, 0, count);
      };
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t r = first + i < n ? x[first + i] + y[first + i] : 0;
        shifted[i] = r >> bits_;
        top[i] = r >> 63;
      }
      for (const int field : {kShifted, kTop}) {
        Fill(call, streams[field], first, count, mask);
        const uint64_t* value = field == kTop ? top : shifted;
        for (int64_t i = 0; i < count; ++i) mask[i] = value[i] - mask[i];
        put(field, first);
      }
      for (int64_t cell = 0; cell < cells_; ++cell) {
        const int64_t at = cell * width_ + first;
        const auto bit = [&](int64_t i) { return 0 - (b[(at + i) / 64] >> ((at + i) % 64) & 1); };
        for (const int field : {kBeta, kBetaShifted, kBetaTop}) {
          Fill(call, streams[field], at, count, mask);
          if (field == kBeta) {
            for (int64_t i = 0; i < count; ++i) mask[i] = (bit(i) & 1) - mask[i];
          } else {
            const uint64_t* value = field == kBetaTop ? top : shifted;
            for (int64_t i = 0; i < count; ++i) mask[i] = (bit(i) & value[i]) - mask[i];
          }
          put(field, at);
        }
      }
    });
    for (int f = 0; f < kFields; ++f) {
      call.session->Record(streams[f], kMasked, to + Offset(f), BytesOf(f));
    }
  }
};

class RouteShareOp : public RouteOp {
 public:
  using RouteOp::RouteOp;
  void Work(OpKernelContext* context) override {
    Call call;
    OP_REQUIRES_OK(context, FindCall(context, &call));
    const Role role = call.session->RoleOf(dealer_);
    OP_REQUIRES(context, role != kDealer, absl::InternalError("the dealer has no share"));
    const Tensor &opened = context->input(1), &m = context->input(2), &dealt = context->input(3);
    const int64_t n = m.NumElements();
    OP_REQUIRES_OK(context, Sizes(Fit(opened, m) && (role == kE1 ||
                                                     dealt.NumElements() == Offset(kFields))));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {cells_, width_}, &out));
    PrfStream streams[kFields];
    if (role == kE1) OP_REQUIRES_OK(context, Streams(call, streams));
    const uint64_t *o = Words(opened), *masked = Words(m);
    const uint8_t* from = dealt.flat<uint8_t>().data();
    uint64_t* y = Words(out);
    const uint64_t second = role == kE2 ? ~uint64_t{0} : 0;
    const int high = 64 - bits_;
    Chunks(context, width_, 10 * (2 + 3 * cells_), [&](int64_t first, int64_t count) {
      alignas(64) uint64_t known[kChunk], low[kChunk], v[kChunk], given[3][kChunk];
      const auto get = [&](int field, int64_t at, uint64_t* to) {
        const int width = WidthOf(field);
        if (role == kE1) {
          Fill(call, streams[field], at, count, to);
        } else {
          UnpackRange(from + Offset(field) + at * width / 8, count, width, to, 0, count);
        }
      };
      get(kShifted, first, given[0]);
      get(kTop, first, given[1]);
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t c = (first + i < n ? masked[first + i] : 0) + (uint64_t{1} << 62);
        known[i] = (c >> bits_) - (uint64_t{1} << (62 - bits_));
        low[i] = (c >> 63) - 1;  // all ones where the top bit is 0
        v[i] = (known[i] & second) - given[0][i] + ((given[1][i] & low[i]) << high);
      }
      for (int64_t cell = 0; cell < cells_; ++cell) {
        const int64_t at = cell * width_ + first;
        for (int f = 0; f < 3; ++f) get(kBeta + f, at, given[f]);
        for (int64_t i = 0; i < count; ++i) {
          const uint64_t bit = 0 - (o[(at + i) / 64] >> ((at + i) % 64) & 1);
          const uint64_t flipped =
              known[i] * given[0][i] - given[1][i] + ((given[2][i] & low[i]) << high);
          y[at + i] = (v[i] & bit) + ((flipped ^ bit) - bit);
        }
      }
    });
    if (role == kE1) {
      for (int f = 0; f < kFields; ++f) RecordShare(call, streams[f], CountOf(f));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("TfeBench>TakeCells").Device(tensorflow::DEVICE_CPU), CellsOp<true>);
REGISTER_KERNEL_BUILDER(Name("TfeBench>PlaceCells").Device(tensorflow::DEVICE_CPU),
                        CellsOp<false>);
REGISTER_KERNEL_BUILDER(Name("TfeBench>SmallSelectDeal").Device(tensorflow::DEVICE_CPU), SmallSelectDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>SmallSelectShare").Device(tensorflow::DEVICE_CPU),
                        SmallSelectShareOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>AddPacked").Device(tensorflow::DEVICE_CPU), AddPackedOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>RouteDeal").Device(tensorflow::DEVICE_CPU), RouteDealOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>RouteShare").Device(tensorflow::DEVICE_CPU), RouteShareOp);

}  // namespace
}  // namespace tfe_bench
