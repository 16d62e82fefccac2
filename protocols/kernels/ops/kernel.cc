#include "protocols/kernels/ops/kernel.h"

#include <string>

#include "protocols/kernels/core/memory.h"

namespace tfe_bench {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status CheckSizes(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t size : dims) {
    if (size < 0 || __builtin_mul_overflow(elements, std::max<int64_t>(1, size), &elements) ||
        elements > kMostElements) {
      return absl::InvalidArgumentError("TfeBench: a tensor has 2^33 elements or less, and no "
                                        "negative axis. Received: an axis of " +
                                        std::to_string(size));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const TensorShape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.dims(); ++i) dims.push_back(shape.dim_size(i));
  return CheckSizes(dims);
}

absl::Status ShapeFrom(const Tensor& t, TensorShape* shape) {
  const auto flat = t.flat<int64_t>();
  const std::vector<int64_t> dims(flat.data(), flat.data() + flat.size());
  TF_RETURN_IF_ERROR(CheckSizes(dims));
  return TensorShape::BuildTensorShape(dims, shape);
}

absl::Status SizeFrom(const Tensor& t, int64_t* size) {
  if (t.NumElements() != 1) return absl::InvalidArgumentError("TfeBench: a size is one number");
  *size = t.flat<int64_t>()(0);
  if (*size >= 0 && *size <= kMostElements) return absl::OkStatus();
  return absl::InvalidArgumentError("TfeBench: a size is 0 to 2^33. Received: " +
                                    std::to_string(*size));
}

absl::Status Allocate(OpKernelContext* context, int index, const TensorShape& shape, Tensor** out) {
  TF_RETURN_IF_ERROR(CheckShape(shape));
  const uint64_t bytes = static_cast<uint64_t>(shape.num_elements()) *
                         tensorflow::DataTypeSize(context->expected_output_dtype(index));
  if (!FitsMemory(bytes)) {
    return absl::ResourceExhaustedError("TfeBench: a result of " + std::to_string(bytes) +
                                        " bytes does not fit into this host's memory");
  }
  return context->allocate_output(index, shape, out);
}

absl::Status Allocate(OpKernelContext* context, int index, std::initializer_list<int64_t> dims,
                      Tensor** out) {
  const std::vector<int64_t> sizes(dims);
  TF_RETURN_IF_ERROR(CheckSizes(sizes));
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(sizes, &shape));
  return Allocate(context, index, shape, out);
}

absl::Status FromException() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("TfeBench: this host's memory does not hold it");
  } catch (const std::exception& error) {
    return absl::InternalError(std::string("TfeBench: ") + error.what());
  }
}

namespace {
absl::Status CheckInputs(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) {
    TF_RETURN_IF_ERROR(CheckShape(context->input(i).shape()));
  }
  return absl::OkStatus();
}
}  // namespace

void AsyncKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  try {
    OP_REQUIRES_OK_ASYNC(context, CheckInputs(context), done);
    WorkAsync(context, done);
  } catch (const std::exception&) {
    context->SetStatus(FromException());
    done();
  }
}

void Kernel::Compute(OpKernelContext* context) {
  try {
    OP_REQUIRES_OK(context, CheckInputs(context));
    Work(context);
  } catch (const std::exception&) {
    context->SetStatus(FromException());
  }
}

}  // namespace tfe_bench
