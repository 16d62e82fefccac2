// Logic on packed private bits: repacking, and the AND of up to 9 bits in one round.
//
// With b_j = o_j ^ beta_j, AND_j b_j is the XOR over all subsets T of AND_{j not in T} o_j times
// AND_{j in T} beta_j, so D deals one bit per non-empty subset (ABY2.0, Patra et al., USENIX
// Security 2021: multi-input AND).
#include <algorithm>
#include <memory>
#include <vector>

#include "protocols/kernels/core/pack.h"
#include "protocols/kernels/ops/dealing.h"

namespace tfe_bench {
namespace {

constexpr int kMostBits = 9;
constexpr int64_t kBlock = 64;  // words at a time

class AndOp : public FieldsOp {
 public:
  using FieldsOp::FieldsOp;

  void Deal(OpKernelContext* context, const Call& call) const {
    const Rows beta(context->input(1));
    const uint64_t* b = beta.bits;
    const int64_t words = beta.words, subsets = beta.subsets;
    const Fields message =
        Write(call, beta.fields, words, Allocate(context, 0, {subsets, words}));
    Blocks(context, beta, [&](uint64_t* product, int64_t first, int64_t count) {
      for (int j = 0; j < beta.r; ++j) {
        for (int64_t t = 0; t < (int64_t{1} << j); ++t) {
          for (int64_t i = 0; i < count; ++i) {
            product[((int64_t{1} << j) + t) * kBlock + i] =
                product[t * kBlock + i] & b[j * words + first + i];
          }
        }
      }
      for (int64_t t = 1; t <= subsets; ++t) {
        message.Put(0, t - 1, first, count, product + t * kBlock);
      }
    });
    message.Record();
  }
  void Share(OpKernelContext* context, const Call& call) const {
    const Rows masked_bits(context->input(1));
    const uint64_t* o = masked_bits.bits;
    const int64_t words = masked_bits.words, subsets = masked_bits.subsets;
    const Fields dealt = Read(call, masked_bits.fields, words, context->input(2));
    uint64_t* share = Words(Allocate(context, 0, {words}));
    // coefficient[T] = AND of the masked bits outside of T
    Blocks(context, masked_bits, [&](uint64_t* coefficient, int64_t first, int64_t count) {
      alignas(64) uint64_t row[kBlock];
      for (int j = 0; j < masked_bits.r; ++j) {
        for (int64_t t = 0; t < (int64_t{1} << j); ++t) {
          for (int64_t i = 0; i < count; ++i) {
            coefficient[((int64_t{1} << j) + t) * kBlock + i] = coefficient[t * kBlock + i];
            coefficient[t * kBlock + i] &= o[j * words + first + i];
          }
        }
      }
      for (int64_t i = 0; i < count; ++i) share[first + i] = call.role == kE1 ? coefficient[i] : 0;
      for (int64_t t = 1; t <= subsets; ++t) {
        dealt.Get(0, t - 1, first, count, row);
        for (int64_t i = 0; i < count; ++i) {
          share[first + i] ^= coefficient[t * kBlock + i] & row[i];
        }
      }
    });
    dealt.Record();
  }

 protected:
  // One bit for each non-empty subset, of rows of `words` words.
  struct Rows {
    explicit Rows(const Tensor& planes) : bits(Words(planes)) {
      Require(planes.dims() == 2 && planes.dim_size(0) >= 1 && planes.dim_size(0) <= kMostBits,
              "an AND takes 1 to 9 rows of packed bits");
      r = static_cast<int>(planes.dim_size(0));
      words = planes.dim_size(1);
      subsets = (int64_t{1} << r) - 1;
      fields = {{64, subsets, true}};
    }
    const uint64_t* bits;
    int r;
    int64_t words, subsets;
    std::vector<Field> fields;
  };
  // fn(space for all subsets, first, count) for blocks of words.
  template <typename Fn>
  static void Blocks(OpKernelContext* context, const Rows& rows, Fn fn) {
    const int64_t words = rows.words, blocks = (words + kBlock - 1) / kBlock;
    ParallelRange(context, blocks, rows.subsets * kBlock * 2, [&](int64_t begin, int64_t end) {
      std::unique_ptr<uint64_t[]> space(new uint64_t[(rows.subsets + 1) * kBlock]);
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kBlock, count = std::min(kBlock, words - first);
        for (int64_t i = 0; i < count; ++i) space[i] = ~uint64_t{0};
        fn(space.get(), first, count);
      }
    });
  }
};

class PackBitsOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override {
    const Tensor& bits = context->input(0);
    Require(bits.dims() == 2, "PackBits expects [rows, n]");
    const int64_t rows = bits.dim_size(0), n = bits.dim_size(1), words = PackedWords(n);
    const uint64_t* from = Words(bits);
    uint64_t* to = Words(Allocate(context, 0, {rows, words}));
    ParallelRange(context, rows * words, 40, [&](int64_t begin, int64_t end) {
      while (begin < end) {  // the part in one row
        const int64_t row = begin / words, first = begin % words;
        const int64_t last = std::min(words, first + end - begin);
        if (last == words) to[row * words + last - 1] = 0;
        PackRange(from + row * n, n, 1, reinterpret_cast<uint8_t*>(to + row * words), 64 * first,
                  64 * last);
        begin += last - first;
      }
    });
  }
};

class UnpackBitsOp : public Kernel {
 public:
  using Kernel::Kernel;
  void Work(OpKernelContext* context) override {
    const Tensor& words = context->input(0);
    const int64_t n = SizeFrom(context->input(1));
    Require(PackedWords(n) == words.NumElements(), "UnpackBits: n does not fit the words");
    uint64_t* bits = Words(Allocate(context, 0, {n}));
    ParallelRange(context, PackedWords(n), 40, [&](int64_t begin, int64_t end) {
      UnpackRange(static_cast<const uint8_t*>(words.data()), n, 1, bits, 64 * begin, 64 * end);
    });
  }
};

void AndShape(InferenceContext* c) { c->set_output(0, c->UnknownShapeOfRank(2)); }

void PackedShape(InferenceContext* c) {
  ShapeHandle bits;
  Require(c->WithRank(c->input(0), 2, &bits));
  DimensionHandle words = c->UnknownDim();
  if (c->ValueKnown(c->Dim(bits, 1))) {
    words = c->MakeDim(PackedWords(ShapeOf({c->Value(c->Dim(bits, 1))}).num_elements()));
  }
  c->set_output(0, c->Matrix(c->Dim(bits, 0), words));
}

// beta [r, words] -> the message [2^r - 1, words] for E2.
TFE_BENCH_CALL_OP("AndDeal", Dealer<AndOp>,
    "beta: int64 -> message: int64", TENSOR_ATTRS, Infer<AndShape>);

// masked_bits [r, words] and the message (empty at E1) -> this evaluator's share [words].
TFE_BENCH_CALL_OP("AndShare", Evaluator<AndOp>,
    "masked_bits dealt: int64 -> share: int64", TENSOR_ATTRS, Outputs<kVector>);

// The lowest bits of [rows, n] -> packed words [rows, ceil(n / 64)].
TFE_BENCH_OP("PackBits", PackBitsOp,
    "bits: int64 -> words: int64", "", Infer<PackedShape>);

TFE_BENCH_OP("UnpackBits", UnpackBitsOp,
    "words n: int64 -> bits: int64", "", Outputs<kVector>);

}  // namespace
}  // namespace tfe_bench
