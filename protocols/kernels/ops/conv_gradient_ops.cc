// Gradients of convolutions over Z_2^64, of their images and of their kernels.
#include <string>
#include <vector>

#include "protocols/kernels/core/conv_gradient.h"
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

using Gradient = void (*)(const ConvShape&, int, const uint64_t* const*, const uint64_t* const*,
                          uint64_t*, const ParallelFor&);

class GradientOp : public Kernel {
 public:
  explicit GradientOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, windows_.Read(c));
    OP_REQUIRES_OK(c, c->GetAttr("depthwise", &depthwise_));
    OP_REQUIRES_OK(c, c->GetAttr("size", &size_));
    OP_REQUIRES(c, size_.size() == 2 && CheckSizes(size_).ok(),
                absl::InvalidArgumentError("a gradient wants a size (height, width)"));
  }

 protected:
  // The operands' words, or an error unless those of one side are alike and of rank 4.
  static absl::Status Operands(OpKernelContext* context, const char* side, OpInputList* list,
                               std::vector<const uint64_t*>* words) {
    TF_RETURN_IF_ERROR(context->input_list(side, list));
    for (const Tensor& t : *list) {
      if (t.dims() != 4 || t.shape() != (*list)[0].shape()) {
        return absl::InvalidArgumentError(
            "TfeBench: the gradient of a convolution wants operands of rank 4 and of one shape");
      }
      words->push_back(Words(t));
    }
    return absl::OkStatus();
  }
  // Whether d is what a convolution of this shape would have given.
  absl::Status Fits(const ConvShape& s, const Tensor& d) const {
    const int64_t outputs = depthwise_ ? s.channels * s.filters : s.filters;
    if (d.dim_size(0) == s.images && d.dim_size(1) == s.out_h && d.dim_size(2) == s.out_w &&
        d.dim_size(3) == outputs) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        "TfeBench: the gradient does not have the shape of the convolution's result");
  }
  void Run(OpKernelContext* context, const ConvShape& s, Gradient gradient,
           const std::vector<const uint64_t*>& a, const std::vector<const uint64_t*>& b,
           Tensor* out) const {
    gradient(s, static_cast<int>(a.size()), a.data(), b.data(), Words(out),
             [&](int64_t total, int64_t cost, const std::function<void(int64_t, int64_t)>& run) {
               ParallelRange(context, total, cost, run);
             });
  }

  Windows windows_;
  bool depthwise_;
  std::vector<int64_t> size_;
};

class InputGradientOp : public GradientOp {
 public:
  using GradientOp::GradientOp;
  void Work(OpKernelContext* context) override {
    OpInputList d, w;
    std::vector<const uint64_t*> ds, ws;
    OP_REQUIRES_OK(context, Operands(context, "a", &d, &ds));
    OP_REQUIRES_OK(context, Operands(context, "b", &w, &ws));
    ConvShape s = {};
    s.images = d[0].dim_size(0), s.h = size_[0], s.w = size_[1];
    s.kernel_h = w[0].dim_size(0), s.kernel_w = w[0].dim_size(1);
    s.channels = w[0].dim_size(2), s.filters = w[0].dim_size(3);
    windows_.Complete(&s);
    OP_REQUIRES_OK(context, Fits(s, d[0]));
    Tensor* dx;
    OP_REQUIRES_OK(context, Allocate(context, 0, {s.images, s.h, s.w, s.channels}, &dx));
    Run(context, s, depthwise_ ? DepthwiseConv2DInputGradient : Conv2DInputGradient, ds, ws, dx);
  }
};

class KernelGradientOp : public GradientOp {
 public:
  using GradientOp::GradientOp;
  void Work(OpKernelContext* context) override {
    OpInputList x, d;
    std::vector<const uint64_t*> xs, ds;
    OP_REQUIRES_OK(context, Operands(context, "a", &x, &xs));
    OP_REQUIRES_OK(context, Operands(context, "b", &d, &ds));
    ConvShape s = {};
    s.images = x[0].dim_size(0), s.h = x[0].dim_size(1), s.w = x[0].dim_size(2);
    s.channels = x[0].dim_size(3);
    s.kernel_h = size_[0], s.kernel_w = size_[1];
    s.filters = d[0].dim_size(3);
    if (depthwise_) s.filters = s.channels == 0 ? 0 : s.filters / s.channels;
    windows_.Complete(&s);
    OP_REQUIRES_OK(context, Fits(s, d[0]));
    Tensor* dw;
    OP_REQUIRES_OK(context,
                   Allocate(context, 0, {s.kernel_h, s.kernel_w, s.channels, s.filters}, &dw));
    Run(context, s, depthwise_ ? DepthwiseConv2DKernelGradient : Conv2DKernelGradient, xs, ds, dw);
  }
};

absl::Status Sizes(InferenceContext* c, std::vector<int64_t>* size, ShapeHandle* a,
                   ShapeHandle* b) {
  int pairs;
  TF_RETURN_IF_ERROR(c->GetAttr("size", size));
  TF_RETURN_IF_ERROR(c->GetAttr("N", &pairs));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 4, a));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(pairs), 4, b));
  if (size->size() == 2 && CheckSizes(*size).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError("a gradient wants a size (height, width)");
}

// The gradient a [n, h', w', filters] and the kernel b [h, w, channels, filters] give that of the
// images, which have this size.
REGISTER_OP("TfeBench>RingConv2DInputGradient")
    .Input("a: N * int64")
    .Input("b: N * int64")
    .Output("c: int64")
    .Attr("N: int >= 1")
    .Attr("size: list(int)")
    .Attr("depthwise: bool")
    .WINDOWS_ATTRS.SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> size;
      ShapeHandle d, w;
      TF_RETURN_IF_ERROR(Sizes(c, &size, &d, &w));
      c->set_output(0, c->MakeShape({c->Dim(d, 0), c->MakeDim(size[0]), c->MakeDim(size[1]),
                                     c->Dim(w, 2)}));
      return absl::OkStatus();
    });

// The images a and the gradient b give that of the kernel, which has this size.
REGISTER_OP("TfeBench>RingConv2DKernelGradient")
    .Input("a: N * int64")
    .Input("b: N * int64")
    .Output("c: int64")
    .Attr("N: int >= 1")
    .Attr("size: list(int)")
    .Attr("depthwise: bool")
    .WINDOWS_ATTRS.SetShapeFn([](InferenceContext* c) {
      std::vector<int64_t> size;
      ShapeHandle x, d;
      TF_RETURN_IF_ERROR(Sizes(c, &size, &x, &d));
      bool depthwise;
      TF_RETURN_IF_ERROR(c->GetAttr("depthwise", &depthwise));
      DimensionHandle filters = c->Dim(d, 3);
      if (depthwise) {
        const DimensionHandle channels = c->Dim(x, 3);
        const bool known = c->ValueKnown(filters) && c->ValueKnown(channels);
        const int64_t count = known ? c->Value(channels) : 0;
        filters = count == 0 ? c->UnknownDim() : c->MakeDim(c->Value(filters) / count);
      }
      c->set_output(0, c->MakeShape({c->MakeDim(size[0]), c->MakeDim(size[1]), c->Dim(x, 3),
                                     filters}));
      return absl::OkStatus();
    });

REGISTER_CPU("RingConv2DInputGradient", InputGradientOp);
REGISTER_CPU("RingConv2DKernelGradient", KernelGradientOp);

}  // namespace
}  // namespace tfe_bench
