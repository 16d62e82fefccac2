// What every kernel shares: no shape, number or lack of memory in it ends the process.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_KERNEL_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_KERNEL_H_

#include <algorithm>
#include <atomic>
#include <exception>
#include <initializer_list>
#include <new>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfe_bench {

// Of one tensor, an axis of 0 counting as 1: so kernels multiply the sizes of an input or output, and
// one such product with a width or a number of fields, without an overflow.  No mask is longer.
constexpr int64_t kMostElements = int64_t{1} << 33;

// Refuses what has more, and what has a negative axis.
absl::Status CheckShape(const tensorflow::TensorShape& shape);
absl::Status CheckSizes(const std::vector<int64_t>& dims);

// The shape that a vector holds.
absl::Status ShapeFrom(const tensorflow::Tensor& t, tensorflow::TensorShape* shape);
// The size that a scalar holds: 0 to kMostElements.
absl::Status SizeFrom(const tensorflow::Tensor& t, int64_t* size);

// Output `index`; refused if its shape is, or if this host's memory does not hold it.
absl::Status Allocate(tensorflow::OpKernelContext* context, int index,
                      const tensorflow::TensorShape& shape, tensorflow::Tensor** out);
absl::Status Allocate(tensorflow::OpKernelContext* context, int index,
                      std::initializer_list<int64_t> dims, tensorflow::Tensor** out);

// The status of an exception that is being handled.
absl::Status FromException();

class Kernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  // Checks the shapes of the inputs, and turns exceptions into statuses.
  void Compute(tensorflow::OpKernelContext* context) final;

 protected:
  virtual void Work(tensorflow::OpKernelContext* context) = 0;
};

class AsyncKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

 protected:
  // Calls done once, unless it throws.
  virtual void WorkAsync(tensorflow::OpKernelContext* context, DoneCallback done) = 0;
};

// Runs fn(begin, end) over [0, total) on the threads that TensorFlow grants.
template <typename Fn>
void ParallelRange(tensorflow::OpKernelContext* context, int64_t total, int64_t cycles_each,
                   Fn fn) {
  constexpr int64_t kMostCycles = int64_t{1} << 29;
  auto workers = *context->device()->tensorflow_cpu_worker_threads();
  // An exception in a thread of TensorFlow's would end the process.
  std::atomic<bool> failed{false};
  tensorflow::Shard(workers.num_threads, workers.workers, total,
                    std::min(cycles_each, kMostCycles), [&](int64_t begin, int64_t end) {
                      try {
                        fn(begin, end);
                      } catch (const std::exception&) {
                        failed = true;
                      }
                    });
  if (failed) throw std::bad_alloc();
}

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_KERNEL_H_
