// The attributes that say where a kernel meets an image.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_WINDOWS_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_WINDOWS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "protocols/kernels/core/conv.h"
#include "protocols/kernels/ops/kernel.h"
#include "tensorflow/core/framework/op.h"

namespace tfe_bench {

// With it and sizes of up to kMostElements nothing below overflows.
constexpr int64_t kMostExtent = int64_t{1} << 28;

// [height, width] each.
struct Windows {
  std::vector<int64_t> strides, dilations, pads;  // pads: top, bottom, left, right
  std::string padding;

  template <typename Context>
  absl::Status Read(Context* c) {
    TF_RETURN_IF_ERROR(c->GetAttr("strides", &strides));
    TF_RETURN_IF_ERROR(c->GetAttr("dilations", &dilations));
    TF_RETURN_IF_ERROR(c->GetAttr("pads", &pads));
    TF_RETURN_IF_ERROR(c->GetAttr("padding", &padding));
    const auto outside = [](const std::vector<int64_t>& v, int64_t least) {
      return std::any_of(v.begin(), v.end(),
                         [least](int64_t i) { return i < least || i > kMostExtent; });
    };
    if (strides.size() != 2 || dilations.size() != 2 || pads.size() != 4 || outside(strides, 1) ||
        outside(dilations, 1) || outside(pads, 0)) {
      return absl::InvalidArgumentError(
          "RingConv2D wants 2 strides and 2 dilations of at least 1, 4 pads of at least 0, and none "
          "above 2^28");
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

  // Strides, dilations, padding and output sizes of a shape whose image and kernel are known.
  void Complete(ConvShape* s) const {
    s->stride_h = strides[0], s->stride_w = strides[1];
    s->dilation_h = dilations[0], s->dilation_w = dilations[1];
    Along(0, s->h, s->kernel_h, &s->out_h, &s->pad_top);
    Along(1, s->w, s->kernel_w, &s->out_w, &s->pad_left);
  }
};

// The attributes themselves.  pads (EXPLICIT only): top, bottom, left, right.
#define WINDOWS_ATTRS                                 \
  Attr("strides: list(int)")                          \
      .Attr("dilations: list(int)")                   \
      .Attr("padding: {'SAME', 'VALID', 'EXPLICIT'}") \
      .Attr("pads: list(int)")

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_WINDOWS_H_
