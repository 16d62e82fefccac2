// What registrations of ops share: attributes, shapes of outputs, and the one device.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_REGISTER_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_REGISTER_H_

#include "protocols/kernels/ops/kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tfe_bench {

// A protocol invocation and its dealer; the number of its first mask; the key of that mask.
#define SITE_ATTRS Attr("site: int").Attr("dealer: int")
#define TENSOR_ATTRS SITE_ATTRS.Attr("tensor: int")
#define MASK_ATTRS TENSOR_ATTRS.Attr("key: int")

// Vectors whose sizes only a call tells.
inline absl::Status Vectors(tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

// Every output has the shape of one input.
template <int kInput>
absl::Status LikeInput(tensorflow::shape_inference::InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(kInput));
  return absl::OkStatus();
}

#define REGISTER_CPU(name, kernel) \
  REGISTER_KERNEL_BUILDER(Name("TfeBench>" name).Device(tensorflow::DEVICE_CPU), kernel)

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_REGISTER_H_
