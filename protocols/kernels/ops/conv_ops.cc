// Convolutions over Z_2^64: windows by TensorFlow's rules (SAME, VALID, explicit padding).
#include <vector>

#include "protocols/kernels/core/conv.h"
#include "protocols/kernels/ops/register.h"
#include "protocols/kernels/ops/session_op.h"
#include "protocols/kernels/ops/windows.h"

namespace tfe_bench {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

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
      TF_RETURN_IF_ERROR(CheckSizes({c->Value(in)}));
      TF_RETURN_IF_ERROR(CheckSizes({c->Value(kernel)}));
      int64_t out, before;
      windows.Along(axis, c->Value(in), c->Value(kernel), &out, &before);
      size[axis] = c->MakeDim(out);
    }
  }
  c->set_output(0, c->MakeShape({c->Dim(x, 0), size[0], size[1], outputs}));
  return absl::OkStatus();
}

template <bool kDepthwise>
class RingConv2DOp : public Kernel {
 public:
  explicit RingConv2DOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, windows_.Read(c));
  }

  void Work(OpKernelContext* context) override {
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
    windows_.Complete(&s);
    Tensor* y;
    const int64_t outputs = kDepthwise ? s.channels * s.filters : s.filters;
    OP_REQUIRES_OK(context, Allocate(context, 0, {s.images, s.out_h, s.out_w, outputs}, &y));
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

// Sum over i of conv(a_i, b_i) over Z_2^64.
#define CONV_OP(name, depthwise)                         \
  REGISTER_OP(name)                                      \
      .Input("a: N * int64")                             \
      .Input("b: N * int64")                             \
      .Output("c: int64")                                \
      .Attr("N: int >= 1")                               \
      .WINDOWS_ATTRS                                     \
      .SetShapeFn([](InferenceContext* c) { return InferShape(c, depthwise); })

CONV_OP("TfeBench>RingConv2D", false);
CONV_OP("TfeBench>RingDepthwiseConv2D", true);

REGISTER_CPU("RingConv2D", RingConv2DOp<false>);
REGISTER_CPU("RingDepthwiseConv2D", RingConv2DOp<true>);

}  // namespace
}  // namespace tfe_bench
