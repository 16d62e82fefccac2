// Ring matrix products, packing of short words, fixed point.
#include <algorithm>
#include <cstring>
#include <vector>

#include "protocols/kernels/core/fixedpoint.h"
#include "protocols/kernels/core/gemm.h"
#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/register.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Where each of the products of a batch begins: leading dimensions broadcast as TensorFlow's.
class Batches {
 public:
  // Both shapes without their last two dimensions; false if they do not broadcast, or to too many.
  bool Init(const TensorShape& a, const TensorShape& b) {
    const int rank = std::max(a.dims(), b.dims()) - 2;
    for (int i = 0; i < rank; ++i) {
      const int in_a = i - (rank + 2 - a.dims()), in_b = i - (rank + 2 - b.dims());
      const int64_t of_a = in_a < 0 ? 1 : a.dim_size(in_a), of_b = in_b < 0 ? 1 : b.dim_size(in_b);
      if (of_a != of_b && of_a != 1 && of_b != 1) return false;
      const int64_t size = of_a == 1 ? of_b : of_a;
      dims_.push_back({size, of_a == 1, of_b == 1});
      lead_.push_back(size);
      b_is_one_ = b_is_one_ && of_b == 1;
      a_is_full_ = a_is_full_ && of_a == size;
    }
    if (!CheckSizes(lead_).ok()) return false;
    for (const int64_t size : lead_) count_ *= size;
    return true;
  }
  const std::vector<int64_t>& lead() const { return lead_; }
  int64_t count() const { return count_; }
  // All products share one b, and the rows of a follow each other: one taller product.
  bool one_product() const { return b_is_one_ && a_is_full_; }

  // Which matrix of a and which of b product `s` takes.
  void Find(int64_t s, int64_t* of_a, int64_t* of_b) const {
    int64_t step_a = 1, step_b = 1;
    *of_a = *of_b = 0;
    for (size_t i = dims_.size(); i-- > 0;) {
      const Dim& d = dims_[i];
      const int64_t at = s % d.size;
      s /= d.size;
      if (!d.a_repeats) *of_a += at * step_a, step_a *= d.size;
      if (!d.b_repeats) *of_b += at * step_b, step_b *= d.size;
    }
  }

 private:
  struct Dim {
    int64_t size;
    bool a_repeats, b_repeats;
  };
  std::vector<Dim> dims_;
  std::vector<int64_t> lead_;
  int64_t count_ = 1;
  bool b_is_one_ = true, a_is_full_ = true;
};

class RingMatMulOp : public Kernel {
 public:
  explicit RingMatMulOp(OpKernelConstruction* c) : Kernel(c) {}

  void Work(OpKernelContext* context) override {
    OpInputList a, b;
    OP_REQUIRES_OK(context, context->input_list("a", &a));
    OP_REQUIRES_OK(context, context->input_list("b", &b));
    const int a_dims = a[0].dims(), b_dims = b[0].dims();
    OP_REQUIRES(context, a_dims >= 2 && b_dims >= 2,
                absl::InvalidArgumentError("RingMatMul wants two tensors of rank >= 2"));
    const int64_t k = a[0].dim_size(a_dims - 1), n = b[0].dim_size(b_dims - 1);
    int64_t m = a[0].dim_size(a_dims - 2);
    Batches batches;
    bool fits = b[0].dim_size(b_dims - 2) == k && batches.Init(a[0].shape(), b[0].shape());
    for (int i = 0; i < a.size(); ++i) {
      fits = fits && a[i].shape() == a[0].shape() && b[i].shape() == b[0].shape();
    }
    OP_REQUIRES(context, fits,
                absl::InvalidArgumentError("RingMatMul: the shapes do not fit each other"));
    std::vector<int64_t> dims = batches.lead();
    dims.insert(dims.end(), {m, n});
    OP_REQUIRES_OK(context, CheckSizes(dims));
    TensorShape shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape(dims, &shape));
    Tensor* c;
    OP_REQUIRES_OK(context, Allocate(context, 0, shape, &c));
    int64_t count = batches.count();
    if (count == 0) return;
    if (batches.one_product()) {
      m *= count;
      count = 1;
    }
    const ParallelFor parallel = [&](int64_t total, int64_t cost,
                                     const std::function<void(int64_t, int64_t)>& fn) {
      ParallelRange(context, total, cost, fn);
    };
    const ParallelFor serial = [](int64_t total, int64_t,
                                  const std::function<void(int64_t, int64_t)>& fn) {
      fn(0, total);
    };
    const auto products = [&](int64_t begin, int64_t end, const ParallelFor& inner) {
      for (int64_t s = begin; s < end; ++s) {
        int64_t of_a, of_b;
        batches.Find(s, &of_a, &of_b);
        for (int i = 0; i < a.size(); ++i) {
          Gemm64(m, n, k, Words(a[i]) + of_a * m * k, k, Words(b[i]) + of_b * k * n, n,
                 Words(c) + s * m * n, n, i > 0, inner);
        }
      }
    };
    constexpr int64_t kMany = 8;  // products that keep all threads busy, each by one thread
    if (count < kMany) {
      products(0, count, parallel);
    } else {
      parallel(count, a.size() * m * n * k / 8 + 200,
               [&](int64_t begin, int64_t end) { products(begin, end, serial); });
    }
  }
};

class WideMulOp : public Kernel {
 public:
  explicit WideMulOp(OpKernelConstruction* c) : Kernel(c) {}
  void Work(OpKernelContext* context) override {
    const Tensor &a = context->input(0), &b = context->input(1);
    OP_REQUIRES(context,
                a.shape() == b.shape() && a.dims() > 0 && a.dim_size(a.dims() - 1) == 2,
                absl::InvalidArgumentError("WideMul wants two tensors [..., 2] of one shape"));
    Tensor* c;
    OP_REQUIRES_OK(context, Allocate(context, 0, a.shape(), &c));
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

class PackWordsOp : public Kernel {
 public:
  explicit PackWordsOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c, width_ >= 1 && width_ <= 64, absl::InvalidArgumentError("width must be 1..64"));
  }
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {PackedBytes(x.NumElements(), width_)}, &out));
    // Groups of eight elements end on a byte boundary, so that they can be worked on alone.
    const int64_t n = x.NumElements();
    ParallelRange(context, (n + 7) / 8, 40, [&](int64_t begin, int64_t end) {
      PackRange(Words(x), n, width_, out->flat<uint8_t>().data(), 8 * begin, 8 * end);
    });
  }

 private:
  int width_;
};

class UnpackWordsOp : public Kernel {
 public:
  explicit UnpackWordsOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("width", &width_));
    OP_REQUIRES(c, width_ >= 1 && width_ <= 64, absl::InvalidArgumentError("width must be 1..64"));
  }
  void Work(OpKernelContext* context) override {
    const Tensor& packed = context->input(0);
    int64_t n;
    OP_REQUIRES_OK(context, SizeFrom(context->input(1), &n));
    OP_REQUIRES(context, PackedBytes(n, width_) == packed.NumElements(),
                absl::InvalidArgumentError("UnpackWords: n does not fit the bytes"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n}, &out));
    ParallelRange(context, (n + 7) / 8, 40, [&](int64_t begin, int64_t end) {
      UnpackRange(packed.flat<uint8_t>().data(), n, width_, Words(out), 8 * begin, 8 * end);
    });
  }

 private:
  int width_;
};

class EncodeFixedOp : public Kernel {
 public:
  explicit EncodeFixedOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("fractional_bits", &fractional_bits_));
  }
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, x.shape(), &out));
    const int64_t bad = EncodeFixed(x.flat<double>().data(), x.NumElements(), fractional_bits_,
                                    Words(out));
    OP_REQUIRES(context, bad < 0,
                absl::OutOfRangeError("TfeBench: element " + std::to_string(bad) +
                                      " is NaN, Inf or outside the fixed-point range"));
  }

 private:
  int fractional_bits_;
};

class DecodeFixedOp : public Kernel {
 public:
  explicit DecodeFixedOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("fractional_bits", &fractional_bits_));
  }
  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, x.shape(), &out));
    DecodeFixed(Words(x), x.NumElements(), fractional_bits_, out->flat<double>().data());
  }

 private:
  int fractional_bits_;
};

REGISTER_CPU("RingMatMul", RingMatMulOp);
REGISTER_CPU("WideMul", WideMulOp);
REGISTER_CPU("PackWords", PackWordsOp);
REGISTER_CPU("UnpackWords", UnpackWordsOp);
REGISTER_CPU("EncodeFixed", EncodeFixedOp);
REGISTER_CPU("DecodeFixed", DecodeFixedOp);

}  // namespace
}  // namespace tfe_bench
