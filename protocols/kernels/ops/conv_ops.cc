// Convolutions over Z_2^64 and their gradients, of the images and of the kernels: windows by
// TensorFlow's rules (SAME, VALID, explicit padding).
#include <algorithm>
#include <string>
#include <vector>

#include "protocols/kernels/core/conv.h"
#include "protocols/kernels/ops/combination.h"

namespace tfe_bench {
namespace {

using Sizes = std::vector<int64_t>;

// With it and sizes of up to kMostElements nothing below overflows.
constexpr int64_t kMostExtent = int64_t{1} << 28;

// [height, width] each.
struct Windows {
  const Sizes strides, dilations, pads;  // pads: top, bottom, left, right
  const std::string padding;

  template <typename Context>
  explicit Windows(Context* c)
      : strides(Attr<Sizes>(c, "strides")),
        dilations(Attr<Sizes>(c, "dilations")),
        pads(Attr<Sizes>(c, "pads")),
        padding(Attr<std::string>(c, "padding")) {
    const auto outside = [](const Sizes& v, int64_t least) {
      return std::any_of(v.begin(), v.end(),
                         [least](int64_t i) { return i < least || i > kMostExtent; });
    };
    Require(strides.size() == 2 && dilations.size() == 2 && pads.size() == 4 &&
                !outside(strides, 1) && !outside(dilations, 1) && !outside(pads, 0),
            "RingConv2D expects 2 strides and 2 dilations of at least 1, 4 pads of at least 0, and "
            "none above 2^28");
  }

  // Output size and padding before the first element along axis 0 or 1.
  void Along(int axis, int64_t in, int64_t kernel, int64_t* out, int64_t* before) const {
    const int64_t stride = strides[axis], reach = (kernel - 1) * dilations[axis] + 1;
    if (padding == "SAME") {
      *out = (in + stride - 1) / stride;
      *before = std::max<int64_t>((*out - 1) * stride + reach - in, 0) / 2;
      return;
    }
    *before = padding == "EXPLICIT" ? pads[2 * axis] : 0;
    const int64_t after = padding == "EXPLICIT" ? pads[2 * axis + 1] : 0;
    const int64_t room = in + *before + after - reach;
    *out = room < 0 ? 0 : room / stride + 1;
  }

  // Strides, dilations, padding and output sizes of a shape whose image and kernel are known.
  void Complete(ConvShape* s) const {
    s->stride_h = strides[0], s->stride_w = strides[1];
    s->dilation_h = dilations[0], s->dilation_w = dilations[1];
    Along(0, s->h, s->kernel_h, &s->out_h, &s->pad_top);
    Along(1, s->w, s->kernel_w, &s->out_w, &s->pad_left);
  }
};

// A convolution meets images [n, h, w, channels], a kernel [h, w, channels, filters] and results
// [n, out_h, out_w, outputs].  Each op takes two of the three and gives the third.
enum Kind { kResult, kImages, kKernel };

// The height and width of the gradient's image or kernel; the operands do not determine them.
template <typename Context>
Sizes SizeAttr(Context* c) {
  const auto size = Attr<Sizes>(c, "size");
  Require(size.size() == 2 && SizesFit(size), "a gradient expects a size (height, width)");
  return size;
}

template <Kind kKind>
class ConvOp : public Kernel {
 public:
  explicit ConvOp(OpKernelConstruction* c)
      : Kernel(c), windows_(c), depthwise_(Attr<bool>(c, "depthwise")) {
    if (kKind == kResult) {
      bits_ = WidthAttr(c, "bits");
    } else {
      size_ = SizeAttr(c);
    }
  }

  void Work(OpKernelContext* context) override {
    std::vector<const uint64_t*> as, bs;
    const Tensor &a = Operands(context, "a", &as), &b = Operands(context, "b", &bs);
    const Tensor& d = kKind == kKernel ? b : a;  // of a gradient: the result's
    ConvShape s = {};
    s.images = a.dim_size(0);
    if (kKind == kImages) {
      s.h = size_[0], s.w = size_[1], s.channels = b.dim_size(2);
    } else {
      s.h = a.dim_size(1), s.w = a.dim_size(2), s.channels = a.dim_size(3);
    }
    if (kKind == kKernel) {
      s.kernel_h = size_[0], s.kernel_w = size_[1], s.filters = d.dim_size(3);
      if (depthwise_) s.filters = s.channels == 0 ? 0 : s.filters / s.channels;
    } else {
      s.kernel_h = b.dim_size(0), s.kernel_w = b.dim_size(1), s.filters = b.dim_size(3);
    }
    Require(kKind != kResult || s.channels == b.dim_size(2),
            "TfeBench: a convolution expects images [n, h, w, channels] and a kernel [h, w, "
            "channels, filters]");
    windows_.Complete(&s);
    s.bits = bits_;
    const TensorShape result =
        ShapeOf({s.images, s.out_h, s.out_w, depthwise_ ? s.channels * s.filters : s.filters});
    Require(kKind == kResult || d.shape() == result,
            "TfeBench: the gradient does not have the shape of the convolution's result");
    const TensorShape shape =
        kKind == kResult   ? result
        : kKind == kImages ? ShapeOf({s.images, s.h, s.w, s.channels})
                           : ShapeOf({s.kernel_h, s.kernel_w, s.channels, s.filters});
    const auto run = kKind == kResult   ? (depthwise_ ? DepthwiseConv2D : Conv2D)
                     : kKind == kImages ? (depthwise_ ? DepthwiseConv2DInputGradient
                                                      : Conv2DInputGradient)
                                        : (depthwise_ ? DepthwiseConv2DKernelGradient
                                                      : Conv2DKernelGradient);
    run(s, static_cast<int>(as.size()), as.data(), bs.data(), Words(Allocate(context, 0, shape)),
        ParallelIn(context));
  }

 private:
  // The first operand of one side and the words of all, which have equal types.
  static const Tensor& Operands(OpKernelContext* context, const char* side,
                                std::vector<const uint64_t*>* words) {
    OpInputList list;
    Require(context->input_list(side, &list));
    for (const Tensor& t : list) {
      Require(t.dims() == 4 && t.shape() == list[0].shape(),
              "TfeBench: a convolution expects operands of rank 4 and of one shape");
      words->push_back(Words(t));
    }
    return list[0];
  }

  const Windows windows_;
  const bool depthwise_;
  int bits_ = 64;
  Sizes size_;
};

// Of images with a sum of kernels, whose words are computed where they are multiplied.
class ConvCombinedOp : public Kernel {
 public:
  explicit ConvCombinedOp(OpKernelConstruction* c)
      : Kernel(c), windows_(c), bits_(WidthAttr(c, "bits")) {
    ReadAttrs(c, "factors", &factors_);
  }

  void Work(OpKernelContext* context) override {
    TensorShape kernel;
    const Combination sum = ReadCombination(context, factors_, &kernel);
    const Tensor& x = context->input(0);
    Require(x.dims() == 4 && kernel.dims() == 4 && x.dim_size(3) == kernel.dim_size(2),
            "ConvCombined expects images [n, h, w, channels] and a kernel [h, w, channels, filters]");
    ConvShape s = {};
    s.images = x.dim_size(0), s.h = x.dim_size(1), s.w = x.dim_size(2), s.channels = x.dim_size(3);
    s.kernel_h = kernel.dim_size(0), s.kernel_w = kernel.dim_size(1), s.filters = kernel.dim_size(3);
    windows_.Complete(&s);
    s.bits = bits_;
    uint64_t* y = Words(Allocate(context, 0, ShapeOf({s.images, s.out_h, s.out_w, s.filters})));
    Conv2DFromSource(
        s, Words(x),
        [&sum](int64_t first, int64_t count, uint64_t* out) { sum.Fill(first, count, out); }, y,
        ParallelIn(context));
  }

 private:
  const Windows windows_;
  const int bits_;
  std::vector<int64_t> factors_;
};

// The two sides, of rank 4.
struct Sides {
  explicit Sides(InferenceContext* c) {
    Require(c->WithRank(c->input(0), 4, &a));
    Require(c->WithRank(c->input(Attr<int>(c, "N")), 4, &b));
  }
  ShapeHandle a, b;
};

// Of images x and kernels w, of rank 4.
void SetResultShape(InferenceContext* c, ShapeHandle x, ShapeHandle w, bool depthwise) {
  const Windows windows(c);
  DimensionHandle channels, outputs = c->Dim(w, 3);
  Require(c->Merge(c->Dim(x, 3), c->Dim(w, 2), &channels));
  if (depthwise) Require(c->Multiply(channels, outputs, &outputs));
  DimensionHandle size[2];
  for (int axis = 0; axis < 2; ++axis) {
    const DimensionHandle in = c->Dim(x, 1 + axis), kernel = c->Dim(w, axis);
    size[axis] = c->UnknownDim();
    if (c->ValueKnown(in) && c->ValueKnown(kernel)) {
      Require(SizesFit({c->Value(in)}) && SizesFit({c->Value(kernel)}), "an axis is too long");
      int64_t out, before;
      windows.Along(axis, c->Value(in), c->Value(kernel), &out, &before);
      size[axis] = c->MakeDim(out);
    }
  }
  c->set_output(0, c->MakeShape({c->Dim(x, 0), size[0], size[1], outputs}));
}

void ResultShape(InferenceContext* c) {
  const auto [x, w] = Sides(c);
  SetResultShape(c, x, w, Attr<bool>(c, "depthwise"));
}

void CombinedShape(InferenceContext* c) {
  ShapeHandle x, w;
  Require(c->WithRank(c->input(0), 4, &x));
  Require(c->MakeShapeFromShapeTensor(c->num_inputs() - 1, &w));
  Require(c->WithRank(w, 4, &w));
  SetResultShape(c, x, w, false);
}

void ImagesShape(InferenceContext* c) {
  const auto [d, w] = Sides(c);
  const Sizes size = SizeAttr(c);
  c->set_output(0, c->MakeShape({c->Dim(d, 0), c->MakeDim(size[0]), c->MakeDim(size[1]),
                                 c->Dim(w, 2)}));
}

void KernelShape(InferenceContext* c) {
  const auto [x, d] = Sides(c);
  const Sizes size = SizeAttr(c);
  const DimensionHandle channels = c->Dim(x, 3);
  DimensionHandle filters = c->Dim(d, 3);
  if (Attr<bool>(c, "depthwise")) {
    const bool known = c->ValueKnown(filters) && c->ValueKnown(channels);
    const int64_t count = known ? c->Value(channels) : 0;
    filters = count == 0 ? c->UnknownDim() : c->MakeDim(c->Value(filters) / count);
  }
  c->set_output(0, c->MakeShape({c->MakeDim(size[0]), c->MakeDim(size[1]), channels, filters}));
}

// pads (EXPLICIT only): top, bottom, left, right.
#define WINDOW_ATTRS                                                    \
  "strides: list(int); dilations: list(int); pads: list(int); "         \
  "padding: {'SAME', 'VALID', 'EXPLICIT'}"

// Of sums over pairs of operands.
#define CONV_OP(name, kind, shape)                                      \
  TFE_BENCH_OP(name, ConvOp<kind>, "a b: N * int64 -> c: int64",        \
               "N: int >= 1; depthwise: bool; " WINDOW_ATTRS, Infer<shape>)

// Images a and kernels b; the low `bits` bits of each word are right.
CONV_OP("RingConv2D", kResult, ResultShape).Attr("bits: int = 64");
// Images x and the sum of the shape [h, w, channels, filters] that Combine would give: the low `bits`
// bits are right.
TFE_BENCH_OP("ConvCombined", ConvCombinedOp,
    "x: int64, words: N * int64, seeds: S * uint8, shape: int64 -> y: int64",
    "N: int >= 0; S: int >= 0; factors: list(int); bits: int; " WINDOW_ATTRS,
    Infer<CombinedShape>);
// The gradient a of the result and kernels b give that of the images, which have this size.
CONV_OP("RingConv2DInputGradient", kImages, ImagesShape).Attr("size: list(int)");
// Images a and the gradient b of the result give that of the kernel, which has this size.
CONV_OP("RingConv2DKernelGradient", kKernel, KernelShape).Attr("size: list(int)");

}  // namespace
}  // namespace tfe_bench
