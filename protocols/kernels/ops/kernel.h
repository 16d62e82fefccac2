// What every kernel shares: no shape, number or lack of memory in it ends the process.  A failure
// within one is an exception, which becomes the status of the graph call.
//
// Every op is stateless in TensorFlow's eyes, so that automatic control dependencies do not chain
// independent messages; a unique `site` keeps two ops from being merged, `call` (a graph input)
// keeps them from being folded, and the tokens that Send returns keep them from being pruned.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_KERNEL_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_KERNEL_H_

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <initializer_list>
#include <new>
#include <string>
#include <vector>

#include "protocols/kernels/core/parallel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/util/work_sharder.h"

namespace tfe_bench {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// ---- failures

// Throws what is not OK; what is false, as an invalid argument.
void Require(const absl::Status& status);
inline void Require(bool holds, const char* otherwise) {
  if (!holds) Require(absl::InvalidArgumentError(otherwise));
}
// The status of an exception that is being handled.
absl::Status FromException();

// The value of an attribute, of an op's kernel or within its shape function.
template <typename T, typename Context>
T Attr(Context* c, const char* name) {
  T value;
  Require(c->GetAttr(name, &value));
  return value;
}
// ReadAttrs(c, "name", &value, "other", &other).
inline void ReadAttrs(OpKernelConstruction*) {}
template <typename T, typename... More>
void ReadAttrs(OpKernelConstruction* c, const char* name, T* value, More... more) {
  Require(c->GetAttr(name, value));
  ReadAttrs(c, more...);
}

// ---- sizes

// Of one tensor, an axis of 0 counting as 1: so kernels multiply the sizes of an input or output, and
// one such product with a width or a number of fields, without an overflow.  No mask is longer.
constexpr int64_t kMostElements = int64_t{1} << 33;

// Whether a tensor may have these sizes.
bool SizesFit(const std::vector<int64_t>& dims);
// Refuses what has more elements, and what has a negative axis.
TensorShape ShapeOf(const std::vector<int64_t>& dims);
// The shape that a vector holds.
TensorShape ShapeFrom(const Tensor& t);
// The size that a scalar holds: 0 to kMostElements.
int64_t SizeFrom(const Tensor& t);

// Fails if this host's memory does not hold `what` of `bytes` bytes.
void CheckMemory(const std::string& what, uint64_t bytes);
// Output `index`; refused if its shape is, or if this host's memory does not hold it.
Tensor* Allocate(OpKernelContext* context, int index, const TensorShape& shape);
Tensor* Allocate(OpKernelContext* context, int index, std::initializer_list<int64_t> dims);

inline const uint64_t* Words(const Tensor& t) {
  return reinterpret_cast<const uint64_t*>(t.flat<int64_t>().data());
}
inline uint64_t* Words(Tensor* t) {
  return reinterpret_cast<uint64_t*>(t->flat<int64_t>().data());
}
inline const uint8_t* Bytes(const Tensor& t) { return t.flat<uint8_t>().data(); }
inline uint8_t* Bytes(Tensor* t) { return t->flat<uint8_t>().data(); }

// The words of `count` inputs from `first` on, which must have n elements each.
std::vector<const uint64_t*> InputWords(OpKernelContext* context, int first, int count, int64_t n);

// ---- packed bits and small rings

inline int64_t PackedWords(int64_t bits) { return (bits + 63) / 64; }
// All ones or zeros: bit i.
inline uint64_t Spread(const uint64_t* packed, int64_t i) {
  return 0 - (packed[i / 64] >> (i % 64) & 1);
}
// The low bits of a word, 1 to 64 of them.
inline uint64_t LowBits(int count) { return ~uint64_t{0} >> (64 - count); }
// The attribute `name`, a width of 1 to 64 bits.
int WidthAttr(OpKernelConstruction* c, const char* name);

// ---- kernels

class Kernel : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;
  // Checks the shapes of the inputs, and turns exceptions into statuses.
  void Compute(OpKernelContext* context) final;

 protected:
  virtual void Work(OpKernelContext* context) = 0;
};

class AsyncKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(OpKernelContext* context, DoneCallback done) final;

 protected:
  // Calls done once, unless it throws.
  virtual void WorkAsync(OpKernelContext* context, DoneCallback done) = 0;
};

// Runs fn(begin, end) over [0, total) on the threads that TensorFlow grants.
template <typename Fn>
void ParallelRange(OpKernelContext* context, int64_t total, int64_t cycles_each, Fn fn) {
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

// ... as the core's algorithms want it.
inline ParallelFor ParallelIn(OpKernelContext* context) {
  return [context](int64_t total, int64_t cycles_each,
                   const std::function<void(int64_t, int64_t)>& fn) {
    ParallelRange(context, total, cycles_each, fn);
  };
}

constexpr int64_t kChunk = 512;  // elements; buffers of one chunk stay in the first-level cache

// Runs fn(first, count) for the chunks of n elements, on the threads that TensorFlow grants.
template <typename Fn>
void Chunks(OpKernelContext* context, int64_t n, int64_t cycles_each, Fn fn) {
  const int64_t chunks = (n + kChunk - 1) / kChunk;
  ParallelRange(context, chunks, cycles_each * kChunk, [&](int64_t a, int64_t b) {
    for (int64_t c = a; c < b; ++c) fn(c * kChunk, std::min(kChunk, n - c * kChunk));
  });
}

// ---- registrations

// Shape functions.  One whose failures are exceptions:
template <void (*kFunction)(InferenceContext*)>
absl::Status Infer(InferenceContext* c) {
  try {
    kFunction(c);
    return absl::OkStatus();
  } catch (const std::exception&) {
    return FromException();
  }
}
// Outputs in order, each of the shape of the input that is named, or a vector whose size
// only a call determines.
constexpr int kVector = -1;
template <int... kInputs>
absl::Status Outputs(InferenceContext* c) {
  int output = 0;
  for (const int input : {kInputs...}) {
    c->set_output(output++, input == kVector ? c->Vector(c->UnknownDim()) : c->input(input));
  }
  return absl::OkStatus();
}
// The output has the shape that follows from the attributes.
template <TensorShape (*kShape)(InferenceContext*)>
void SetShape(InferenceContext* c) {
  ShapeHandle shape;
  Require(c->MakeShapeFromTensorShape(kShape(c), &shape));
  c->set_output(0, shape);
}
template <TensorShape (*kShape)(InferenceContext*)>
absl::Status OutputShape(InferenceContext* c) {
  return Infer<SetShape<kShape>>(c);
}
// The output has the shape that an input holds.
template <int kInput>
absl::Status ShapeFromInput(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(kInput, &shape));
  c->set_output(0, shape);
  return absl::OkStatus();
}

// A kernel, or nullptr and a failed construction.
template <typename K>
tensorflow::OpKernel* Make(OpKernelConstruction* c) {
  try {
    return new K(c);
  } catch (const std::exception&) {
    c->CtxFailure(FromException());
    return nullptr;
  }
}

// The description of an op: "a b: int64, c: uint8 -> y: int64" and "first: int; second: list(int)".
tensorflow::register_op::OpDefBuilderWrapper Described(const char* name,
                                                       const std::string& signature,
                                                       const std::string& attributes);

// Registers an op, described as above, and its kernel.  The last argument is its shape function.
#define TFE_BENCH_OP(...) TFE_BENCH_OP_NUMBERED(__COUNTER__, __VA_ARGS__)
#define TFE_BENCH_OP_NUMBERED(number, ...) TFE_BENCH_OP_AS(number, __VA_ARGS__)
#define TFE_BENCH_OP_AS(number, name, kernel, signature, attributes, ...)                   \
  static const tensorflow::kernel_factory::OpKernelRegistrar kernel_##number(               \
      tensorflow::register_kernel::Name("TfeBench>" name)                                   \
          .Device(tensorflow::DEVICE_CPU)                                                   \
          .Build(),                                                                         \
      #kernel, Make<kernel>);                                                               \
  static const tensorflow::InitOnStartupMarker op_##number =                                \
      tensorflow::InitOnStartupMarker{}                                                     \
      << Described("TfeBench>" name, signature, attributes).SetShapeFn(__VA_ARGS__)

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_KERNEL_H_
