// Kernels around core/lut.h: comparison of masked values.
#include <algorithm>
#include <memory>
#include <vector>

#include "protocols/kernels/core/lut.h"
#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {
namespace {

class PlanesOp : public Kernel {
 public:
  explicit PlanesOp(OpKernelConstruction* c) : Kernel(c) {
    ReadAttrs(c, "bits", &bits_);
    Require(bits_ >= 1 && bits_ <= 128, "bits must be 1..128");
  }

  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Require(x.dims() == 2 && (x.dim_size(1) == 1 || x.dim_size(1) == 2),
            "Planes expects [n, 1] or [n, 2] words");
    const int limbs = static_cast<int>(x.dim_size(1));
    Require(bits_ <= 64 * limbs, "more bits than the words hold");
    int64_t n = x.dim_size(0);
    const int32_t *a = nullptr, *b = nullptr;
    if (context->num_inputs() == 3) {
      const Tensor &left = context->input(1), &right = context->input(2);
      const int64_t pairs = left.NumElements();
      Require(right.NumElements() == pairs, "left and right must have one length");
      const auto indices = [&](const Tensor& t) {
        const int32_t* of = t.flat<int32_t>().data();
        Require(std::all_of(of, of + pairs, [&](int32_t i) { return i >= 0 && i < n; }),
                "pair index out of range");
        return of;
      };
      a = indices(left);
      b = indices(right);
      n = pairs;
    }
    uint64_t* out = Words(Allocate(context, 0, {PackedWords(n) * bits_}));
    ParallelRange(context, SuperblocksFor(PackedWords(n)), 512 * 30 * limbs,
                  [&](int64_t begin, int64_t end) {
                    Lut().planes(Words(x), limbs, a, b, n, bits_, out, begin, end);
                  });
  }

 private:
  int bits_;
};

class LutOp : public SiteOp {
 public:
  explicit LutOp(OpKernelConstruction* c) : SiteOp(c) {
    std::vector<int> widths, groups, counts;
    ReadAttrs(c, "bits", &recipe_.bits, "widths", &widths, "groups", &groups, "group_counts",
              &counts, "absorb", &recipe_.absorb);
    Require(widths.size() <= kMaxChunks && counts.size() <= kMaxLevels, "LUT recipe too large");
    recipe_.chunks = static_cast<int>(widths.size());
    std::copy(widths.begin(), widths.end(), recipe_.width);
    recipe_.levels = static_cast<int>(counts.size());
    size_t next = 0;
    for (size_t level = 0; level < counts.size(); ++level) {
      recipe_.groups[level] = counts[level];
      for (int g = 0; g < counts[level]; ++g) {
        Require(g < kMaxChunks && next < groups.size(), "LUT recipe: too few groups");
        recipe_.group[level][g] = groups[next++];
      }
    }
    const char* wrong = recipe_.Check();
    Require(wrong == nullptr, wrong);
  }

 protected:
  // The call, the number of words from the plane tensor and the streams that this role holds.
  struct Job {
    Job(const LutOp& op, const Call& c, const Tensor& planes) : call(c) {
      const LutRecipe& recipe = op.recipe_;
      Require(planes.NumElements() % recipe.bits == 0, "planes do not fit the recipe");
      words = planes.NumElements() / recipe.bits;
      for (int s = 0; s < 1 + 2 * recipe.levels; ++s) {
        const KeyRole key = s == kDealtStream || s % 2 == 1 ? kK1 : kK2;
        if (call.role != kDealer && (call.role == kE1) != (key == kK1)) continue;
        streams[s] = op.Stream(call, key, s, recipe.DealtPlanes() * (words + 8));
      }
      mask.env = this;
      mask.fill = [](const void* env, int stream, uint64_t first, uint64_t blocks, uint64_t* out) {
        const Job* j = static_cast<const Job*>(env);
        FillMask(*j->call.session, j->streams[stream], first, blocks,
                 reinterpret_cast<uint8_t*>(out));
      };
    }
    Job(const Job&) = delete;
    // The mask under which this evaluator's message of a level leaves.
    const PrfStream& Own(int level) const {
      return streams[LevelMask(level, call.role == kE1)];
    }

    const Call call;
    int64_t words = 0;
    PrfStream streams[1 + 2 * kMaxLevels];
    MaskSource mask;
  };

  template <typename Fn>
  void Run(OpKernelContext* context, const Job& job, Fn fn) {
    const int64_t scratch = LutScratchWords(recipe_);
    ParallelRange(context, SuperblocksFor(job.words), 400 * recipe_.chunks,
                  [&](int64_t begin, int64_t end) {
                    std::unique_ptr<uint64_t[]> space(new uint64_t[scratch]);
                    fn(space.get(), begin, end);
                  });
  }

  // The words of a message of this many planes.
  static const uint64_t* Message(const Job& job, const Tensor& t, int64_t planes) {
    Require(t.NumElements() == planes * job.words,
            "a message of this comparison has the wrong size");
    return Words(t);
  }
  // The dealt planes; nullptr for E1, which makes them itself.
  const uint64_t* Dealt(const Job& job, const Tensor& t) const {
    return job.call.role == kE1 ? nullptr : Message(job, t, recipe_.DealtPlanes());
  }

  LutRecipe recipe_;
};

class LutDealOp : public LutOp {
 public:
  using LutOp::LutOp;
  void Work(OpKernelContext* context) override {
    const Job job(*this, AsDealer(context), context->input(1));
    Tensor* message = Allocate(context, 0, {job.words * recipe_.DealtPlanes()});
    uint64_t* top = Words(Allocate(context, 1, {job.words}));
    const uint64_t* lam = Words(context->input(1));
    Run(context, job, [&](uint64_t* scratch, int64_t begin, int64_t end) {
      Lut().deal(recipe_, job.words, lam, job.mask, Words(message), top, scratch, begin, end);
    });
    RecordMasked(job.call, job.streams[kDealtStream], *message);
    for (int level = 0; level < recipe_.levels; ++level) {
      for (const bool first : {true, false}) {
        RecordShare(job.call, job.streams[LevelMask(level, first)],
                    recipe_.ExchangePlanes(level) * job.words);
      }
    }
  }
};

class LutExchangeOp : public LutOp {
 public:
  using LutOp::LutOp;
  void Work(OpKernelContext* context) override {
    const Job job(*this, AsEvaluator(context), context->input(1));
    const uint64_t* m = Words(context->input(1));
    const uint64_t* dealt = Dealt(job, context->input(2));
    Tensor* message = Allocate(context, 0, {job.words * recipe_.ExchangePlanes(0)});
    Run(context, job, [&](uint64_t* scratch, int64_t begin, int64_t end) {
      Lut().exchange(recipe_, job.words, m, dealt, job.mask, Words(message), scratch, begin, end);
    });
    if (job.call.role == kE1) {
      RecordShare(job.call, job.streams[kDealtStream], recipe_.DealtPlanes() * job.words);
    }
    RecordMasked(job.call, job.Own(0), *message);
  }
};

class LutNodeOp : public LutOp {
 public:
  explicit LutNodeOp(OpKernelConstruction* c) : LutOp(c), level_(Attr<int>(c, "level")) {
    Require(level_ >= 0 && level_ < recipe_.levels, "level out of range");
  }

  void Work(OpKernelContext* context) override {
    const Job job(*this, AsEvaluator(context), context->input(1));
    const uint64_t* m = Words(context->input(1));
    const uint64_t* own = Message(job, context->input(2), recipe_.ExchangePlanes(level_));
    const uint64_t* other = Message(job, context->input(3), recipe_.ExchangePlanes(level_));
    const uint64_t* dealt = Dealt(job, context->input(4));
    const bool done = level_ == recipe_.levels - 1;
    const int planes = done ? 1 : recipe_.ExchangePlanes(level_ + 1);
    Tensor* out = Allocate(context, 0, {job.words * planes});
    Run(context, job, [&](uint64_t* scratch, int64_t begin, int64_t end) {
      Lut().node(recipe_, level_, job.words, m, own, other, dealt, job.mask, Words(out), scratch,
                 begin, end);
    });
    if (!done) RecordMasked(job.call, job.Own(level_ + 1), *out);
  }

 private:
  const int level_;
};

TFE_BENCH_OP("Planes", PlanesOp,
    "x: int64 -> planes: int64", "bits: int", Outputs<kVector>);

TFE_BENCH_OP("DifferencePlanes", PlanesOp,
    "x: int64, left right: int32 -> planes: int64", "bits: int", Outputs<kVector>);

#define LUT_ATTRS                                                                \
  SITE_ATTRS                                                                     \
  "; bits: int; widths: list(int); groups: list(int); group_counts: list(int); " \
  "absorb: bool"

TFE_BENCH_CALL_OP("LutDeal", LutDealOp,
    "lam_planes: int64 -> message top: int64", LUT_ATTRS, Outputs<kVector, kVector>);

TFE_BENCH_CALL_OP("LutExchange", LutExchangeOp,
    "m_planes dealt: int64 -> message: int64", LUT_ATTRS, Outputs<kVector>);

TFE_BENCH_CALL_OP("LutNode", LutNodeOp,
    "m_planes own other dealt: int64 -> message: int64", "level: int; " LUT_ATTRS,
    Outputs<kVector>);

}  // namespace
}  // namespace tfe_bench
