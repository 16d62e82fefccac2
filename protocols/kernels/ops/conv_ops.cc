// Convolutions over Z_2^64: windows by TensorFlow's rules (SAME, VALID, explicit padding).
#include <algorithm>
#include <string>
#include <vector>

#include "protocols/kernels/core/conv.h"
#include "protocols/kernels/ops/session_op.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The attributes that say where a kernel meets an image, [height, width] each.
struct Windows {
  std::vector<int64_t> strides, dilations, pads;  // pads: top, bottom, left, right
  std::string padding;

  template <typename Context>
  absl::Status Read(Context* c) {
    TF_RETURN_IF_ERROR(c->GetAttr("strides", &strides));
    TF_RETURN_IF_ERROR(c->GetAttr("dilations", &dilations));
    TF_RETURN_IF_ERROR(c->GetAttr("pads", &pads));
    TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
    const auto below = [](const std::vector<int64_t>& v, int64_t least) {
      return std::any_of(v.begin(), v.end(), [least](int64_t i) { return i < least; });
    };
    if (strides.size() != 2 || dilations.size() != 2 || pads.size() != 4 || below(strides, 1) ||
        below(dilations, 1) || below(pads, 0)) {
      return absl::InvalidArgumentError(
          "RingConv2D wants 2 strides and 2 dilations of at least 1, and 4 pads of at least 0");
    }
    return absl::OkStatus();
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
};

absl::Status InferShape(InferenceContext* c, bool depthwise) {
  Windows windows;
  TF_RETURN_IF_ERROR(windows.Read(c));
  int pairs;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &pairs));
  ShapeHandle x, w;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, &x));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(pairs), 4, &w));
  DimensionHandle channels, outputs = c->Dim(w, 3);
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(x, 3), c->Dim(w, 2), &channels));
  if (depthwise) TF_RETURN_IF_ERROR(c->Multiply(channels, outputs, &outputs));
  DimensionHandle size[2];
  for (int axis = 0; axis < 2; ++axis) {
    const DimensionHandle in = c->Dim(x, 1 + axis), kernel = c->Dim(w, axis);
    size[axis] = c->UnknownDim();
    if (c->ValueKnown(in) && c->ValueKnown(kernel)) {
      int64_t out, before;
      windows.Along(axis, c->Value(in), c->Value(kernel), &out, &before);
      size[axis] = c->MakeDim(out);
    }
  }
  c->set_output(0, c->MakeShape({c->Dim(x, 0), size[0], size[1], outputs}));
  return absl::OkStatus();
}

template <bool kDepthwise>
class RingConv2DOp : public OpKernel {
 public:
  explicit RingConv2DOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, windows_.Read(c));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList x, w;
    OP_REQUIRES_OK(context, context->input_list("a", &x));
    OP_REQUIRES_OK(context, context->input_list("b", &w));
    bool fits = x[0].dims() == 4 && w[0].dims() == 4 && x[0].dim_size(3) == w[0].dim_size(2);
    for (int i = 0; i < x.size(); ++i) {
      fits = fits && x[i].shape() == x[0].shape() && w[i].shape() == w[0].shape();
    }
    OP_REQUIRES(context, fits,
                absl::InvalidArgumentError(
                    "TfeBench: a convolution wants images [n, h, w, channels] and a kernel [h, w, "
                    "channels, filters]"));
    ConvShape s = {};
    s.images = x[0].dim_size(0), s.h = x[0].dim_size(1), s.w = x[0].dim_size(2);
    s.channels = x[0].dim_size(3);
    s.kernel_h = w[0].dim_size(0), s.kernel_w = w[0].dim_size(1), s.filters = w[0].dim_size(3);
    s.stride_h = windows_.strides[0], s.stride_w = windows_.strides[1];
    s.dilation_h = windows_.dilations[0], s.dilation_w = windows_.dilations[1];
    windows_.Along(0, s.h, s.kernel_h, &s.out_h, &s.pad_top);
    windows_.Along(1, s.w, s.kernel_w, &s.out_w, &s.pad_left);
    Tensor* y;
    const int64_t outputs = kDepthwise ? s.channels * s.filters : s.filters;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({s.images, s.out_h, s.out_w, outputs}), &y));
    std::vector<const uint64_t*> xs, ws;
    for (int i = 0; i < x.size(); ++i) {
      xs.push_back(Words(x[i]));
      ws.push_back(Words(w[i]));
    }
    const ParallelFor parallel = [&](int64_t total, int64_t cost,
                                     const std::function<void(int64_t, int64_t)>& run) {
      ParallelRange(context, total, cost, run);
    };
    (kDepthwise ? DepthwiseConv2D : Conv2D)(s, x.size(), xs.data(), ws.data(), Words(y), parallel);
  }

 private:
  Windows windows_;
};

// Sum over i of conv(a_i, b_i) over Z_2^64.  pads (EXPLICIT only): top, bottom, left, right.
#define CONV_OP(name, depthwise)                         \
  REGISTER_OP(name)                                      \
      .Input("a: N * int64")                             \
      .Input("b: N * int64")                             \
      .Output("c: int64")                                \
      .Attr("N: int >= 1")                               \
      .Attr("strides: list(int)")                        \
      .Attr("dilations: list(int)")                      \
      .Attr("padding: {'SAME', 'VALID', 'EXPLICIT'}")    \
      .Attr("pads: list(int)")                           \
      .SetShapeFn([](InferenceContext* c) { return InferShape(c, depthwise); })

CONV_OP("TfeBench>RingConv2D", false);
CONV_OP("TfeBench>RingDepthwiseConv2D", true);

REGISTER_KERNEL_BUILDER(Name("TfeBench>RingConv2D").Device(tensorflow::DEVICE_CPU),
                        RingConv2DOp<false>);
REGISTER_KERNEL_BUILDER(Name("TfeBench>RingDepthwiseConv2D").Device(tensorflow::DEVICE_CPU),
                        RingConv2DOp<true>);

}  // namespace
}  // namespace tfe_bench
