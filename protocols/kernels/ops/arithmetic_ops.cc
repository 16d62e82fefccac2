// Ring matrix products, packing of short words, fixed point.
#include <algorithm>
#include <cstring>
#include <vector>

#include "protocols/kernels/core/fixedpoint.h"
#include "protocols/kernels/core/gemm.h"
#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class RingMatMulOp : public OpKernel {
 public:
  explicit RingMatMulOp(OpKernelConstruction* c) : OpKernel(c) {}

  void Compute(OpKernelContext* context) override {
    OpInputList a, b;
    OP_REQUIRES_OK(context, context->input_list("a", &a));
    OP_REQUIRES_OK(context, context->input_list("b", &b));
    const int dims = a[0].dims();
    OP_REQUIRES(context, dims >= 2 && b[0].dims() == dims,
                absl::InvalidArgumentError("RingMatMul wants two tensors of equal rank >= 2"));
    TensorShape shape = a[0].shape();
    const int64_t m = shape.dim_size(dims - 2), k = shape.dim_size(dims - 1);
    const int64_t n = b[0].dim_size(dims - 1);
    bool fits = b[0].dim_size(dims - 2) == k;
    int64_t batch = 1;
    for (int i = 0; i < dims - 2; ++i) {
      fits = fits && b[0].dim_size(i) == shape.dim_size(i);
      batch *= shape.dim_size(i);
    }
    for (int i = 0; i < a.size(); ++i) {
      fits = fits && a[i].shape() == a[0].shape() && b[i].shape() == b[0].shape();
    }
    OP_REQUIRES(context, fits,
                absl::InvalidArgumentError("RingMatMul: the shapes do not fit each other"));
    shape.set_dim(dims - 1, n);
    Tensor* c;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &c));
    const ParallelFor parallel = [&](int64_t total, int64_t cost,
                                     const std::function<void(int64_t, int64_t)>& fn) {
      ParallelRange(context, total, cost, fn);
    };
    for (int64_t s = 0; s < batch; ++s) {
      for (int i = 0; i < a.size(); ++i) {
        Gemm64(m, n, k, Words(a[i]) + s * m * k, k, Words(b[i]) + s * k * n, n,
               Words(c) + s * m * n, n, i > 0, parallel);
      }
    }
  }
};

class WideMulOp : public OpKernel {
 public:
  explicit WideMulOp(OpKernelConstruction* c) : OpKernel(c) {}
  void Compute(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1);
    OP_REQUIRES(context,
                a.shape() == b.shape() && a.dims() > 0 && a.dim_size(a.dims() - 1) == 2,
                absl::InvalidArgumentError("WideMul wants two tensors [..., 2] of one shape"));
    Tensor* c;
    OP_REQUIRES_OK(context, context->allocate_output(0, a.shape(), &c));
    const uint64_t *p = Words(a), *q = Words(b);
    uint64_t* r = Words(c);
    for (int64_t i = 0; i < a.NumElements(); i += 2) {
      unsigned __int128 u, v;
      std::memcpy(&u, p + i, 16);
      std::memcpy(&v, q + i, 16);
      u *= v;
      std::memcpy(r + i, &u, 16);
    }
  }
};

class PackWordsOp : public OpKernel {
 public:
  explicit PackWordsOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c, width_ >= 1 && width_ <= 64, absl::InvalidArgumentError("width must be 1..64"));
  }
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(
                                0, TensorShape({PackedBytes(x.NumElements(), width_)}), &out));
    // Groups of eight elements end on a byte boundary, so that they can be worked on alone.
    const int64_t n = x.NumElements();
    ParallelRange(context, (n + 7) / 8, 40, [&](int64_t begin, int64_t end) {
      PackRange(Words(x), n, width_, out->flat<uint8_t>().data(), 8 * begin, 8 * end);
    });
  }

 private:
  int width_;
};

class UnpackWordsOp : public OpKernel {
 public:
  explicit UnpackWordsOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c, width_ >= 1 && width_ <= 64, absl::InvalidArgumentError("width must be 1..64"));
  }
  void Compute(OpKernelContext* context) override {
    const Tensor& packed = context->input(0);
    const int64_t n = context->input(1).scalar<int64_t>()();
    OP_REQUIRES(context, n >= 0 && PackedBytes(n, width_) == packed.NumElements(),
                absl::InvalidArgumentError("UnpackWords: n does not fit the bytes"));
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({n}), &out));
    ParallelRange(context, (n + 7) / 8, 40, [&](int64_t begin, int64_t end) {
      UnpackRange(packed.flat<uint8_t>().data(), n, width_, Words(out), 8 * begin, 8 * end);
    });
  }

 private:
  int width_;
};

class EncodeFixedOp : public OpKernel {
 public:
  explicit EncodeFixedOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("fractional_bits", &fractional_bits_));
  }
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &out));
    const int64_t bad = EncodeFixed(x.flat<double>().data(), x.NumElements(), fractional_bits_,
                                    Words(out));
    OP_REQUIRES(context, bad < 0,
                absl::OutOfRangeError("TfeBench: element " + std::to_string(bad) +
                                      " is NaN, Inf or outside the fixed-point range"));
  }

 private:
  int fractional_bits_;
};

class DecodeFixedOp : public OpKernel {
 public:
  explicit DecodeFixedOp(OpKernelConstruction* c) : OpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("fractional_bits", &fractional_bits_));
  }
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &out));
    DecodeFixed(Words(x), x.NumElements(), fractional_bits_, out->flat<double>().data());
  }

 private:
  int fractional_bits_;
};

REGISTER_KERNEL_BUILDER(Name("TfeBench>RingMatMul").Device(tensorflow::DEVICE_CPU), RingMatMulOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>WideMul").Device(tensorflow::DEVICE_CPU), WideMulOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>PackWords").Device(tensorflow::DEVICE_CPU), PackWordsOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>UnpackWords").Device(tensorflow::DEVICE_CPU), UnpackWordsOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>EncodeFixed").Device(tensorflow::DEVICE_CPU), EncodeFixedOp);
REGISTER_KERNEL_BUILDER(Name("TfeBench>DecodeFixed").Device(tensorflow::DEVICE_CPU), DecodeFixedOp);

}  // namespace
}  // namespace tfe_bench
