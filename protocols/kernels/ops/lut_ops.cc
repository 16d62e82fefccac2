// Kernels around core/lut.h: comparison of masked values.
#include <cstring>
#include <vector>

#include "protocols/kernels/core/lut.h"
#include "protocols/kernels/ops/chunks.h"
#include "protocols/kernels/ops/register.h"

namespace tfe_bench {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

class PlanesOp : public Kernel {
 public:
  explicit PlanesOp(OpKernelConstruction* c) : Kernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("bits", &bits_));
    OP_REQUIRES(c, bits_ >= 1 && bits_ <= 128, absl::InvalidArgumentError("bits must be 1..128"));
  }

  void Work(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    OP_REQUIRES(context, x.dims() == 2 && (x.dim_size(1) == 1 || x.dim_size(1) == 2),
                absl::InvalidArgumentError("Planes wants [n, 1] or [n, 2] words"));
    const int limbs = static_cast<int>(x.dim_size(1));
    OP_REQUIRES(context, bits_ <= 64 * limbs,
                absl::InvalidArgumentError("more bits than the words hold"));
    int64_t n = x.dim_size(0);
    const int32_t *a = nullptr, *b = nullptr;
    if (context->num_inputs() == 3) {
      const Tensor &left = context->input(1), &right = context->input(2);
      OP_REQUIRES(context, left.NumElements() == right.NumElements(),
                  absl::InvalidArgumentError("left and right must have one length"));
      a = left.flat<int32_t>().data();
      b = right.flat<int32_t>().data();
      const int64_t pairs = left.NumElements();
      for (int64_t i = 0; i < pairs; ++i) {
        OP_REQUIRES(context, a[i] >= 0 && a[i] < n && b[i] >= 0 && b[i] < n,
                    absl::InvalidArgumentError("pair index out of range"));
      }
      n = pairs;
    }
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {WordsFor(n) * bits_}, &out));
    ParallelRange(context, SuperblocksFor(WordsFor(n)), 512 * 30 * limbs,
                  [&](int64_t begin, int64_t end) {
                    Lut().planes(Words(x), limbs, a, b, n, bits_, Words(out), begin, end);
                  });
  }

 private:
  int bits_;
};

class LutOp : public SiteOp {
 public:
  explicit LutOp(OpKernelConstruction* c) : SiteOp(c) {
    std::vector<int> widths, groups, counts;
    OP_REQUIRES_OK(c, c->GetAttr("bits", &recipe_.bits));
    OP_REQUIRES_OK(c, c->GetAttr("widths", &widths));
    OP_REQUIRES_OK(c, c->GetAttr("groups", &groups));
    OP_REQUIRES_OK(c, c->GetAttr("group_counts", &counts));
    OP_REQUIRES_OK(c, c->GetAttr("absorb", &recipe_.absorb));
    OP_REQUIRES(c, widths.size() <= kMaxChunks && counts.size() <= kMaxLevels,
                absl::InvalidArgumentError("LUT recipe too large"));
    recipe_.chunks = static_cast<int>(widths.size());
    for (size_t i = 0; i < widths.size(); ++i) recipe_.width[i] = widths[i];
    recipe_.levels = static_cast<int>(counts.size());
    size_t next = 0;
    for (size_t level = 0; level < counts.size(); ++level) {
      recipe_.groups[level] = counts[level];
      for (int g = 0; g < counts[level]; ++g) {
        OP_REQUIRES(c, g < kMaxChunks && next < groups.size(),
                    absl::InvalidArgumentError("LUT recipe: too few groups"));
        recipe_.group[level][g] = groups[next++];
      }
    }
    const char* wrong = recipe_.Check();
    OP_REQUIRES(c, wrong == nullptr, absl::InvalidArgumentError(wrong ? wrong : ""));
  }

 protected:
  struct Job {
    Call call;
    int64_t words = 0;
    PrfStream streams[1 + 2 * kMaxLevels];
    bool held[1 + 2 * kMaxLevels] = {};
    MaskSource mask;
  };

  // Finds the call, the number of words from the plane tensor and the streams this role holds.
  absl::Status Start(OpKernelContext* context, const Tensor& planes, bool deals, Job* job) {
    TF_RETURN_IF_ERROR(deals ? AsDealer(context, &job->call) : AsEvaluator(context, &job->call));
    if (planes.NumElements() % recipe_.bits) {
      return absl::InvalidArgumentError("planes do not fit the recipe");
    }
    job->words = planes.NumElements() / recipe_.bits;
    const Role role = job->call.role;
    for (int s = 0; s < 1 + 2 * recipe_.levels; ++s) {
      const KeyRole key = s == kDealtStream || s % 2 == 1 ? kK1 : kK2;
      job->held[s] = role == kDealer || (role == kE1) == (key == kK1);
      if (!job->held[s]) continue;
      TF_RETURN_IF_ERROR(Stream(job->call, key, s, recipe_.DealtPlanes() * (job->words + 8),
                                &job->streams[s]));
    }
    job->mask.env = job;
    job->mask.fill = [](const void* env, int stream, uint64_t first, uint64_t blocks,
                        uint8_t* out) {
      const Job* j = static_cast<const Job*>(env);
      FillMask(*j->call.session, j->streams[stream], first, blocks, out);
    };
    return absl::OkStatus();
  }

  template <typename Fn>
  void Run(OpKernelContext* context, const Job& job, Fn fn) {
    const int64_t scratch = LutScratchBytes(recipe_);
    ParallelRange(context, SuperblocksFor(job.words), 400 * recipe_.chunks,
                  [&](int64_t begin, int64_t end) {
                    std::unique_ptr<uint8_t[]> space(new uint8_t[scratch]);
                    fn(space.get(), begin, end);
                  });
  }

  absl::Status Expect(const Tensor& t, int64_t planes, const Job& job) {
    if (t.NumElements() != planes * job.words) {
      return absl::InvalidArgumentError("a message of this comparison has the wrong size");
    }
    return absl::OkStatus();
  }

  // nullptr for E1, which makes its dealt planes itself.
  static const uint64_t* Dealt(const Job& job, const Tensor& t) {
    return job.call.role == kE1 ? nullptr : Words(t);
  }

  LutRecipe recipe_;
};

class LutDealOp : public LutOp {
 public:
  using LutOp::LutOp;
  void Work(OpKernelContext* context) override {
    Job job;
    OP_REQUIRES_OK(context, Start(context, context->input(1), true, &job));
    Tensor *message, *top;
    OP_REQUIRES_OK(context, Allocate(context, 0, {job.words * recipe_.DealtPlanes()}, &message));
    OP_REQUIRES_OK(context, Allocate(context, 1, {job.words}, &top));
    const uint64_t* lam = Words(context->input(1));
    Run(context, job, [&](uint8_t* scratch, int64_t begin, int64_t end) {
      Lut().deal(recipe_, job.words, lam, job.mask, Words(message), Words(top), scratch, begin,
                 end);
    });
    job.call.session->Record(job.streams[kDealtStream], kMasked, Words(message),
                             message->NumElements() * 8);
    for (int level = 0; level < recipe_.levels; ++level) {
      for (int stream : {LevelMaskK1(level), LevelMaskK2(level)}) {
        RecordShare(job.call, job.streams[stream], recipe_.OpenPlanes(level) * job.words);
      }
    }
  }
};

class LutOpenOp : public LutOp {
 public:
  using LutOp::LutOp;
  void Work(OpKernelContext* context) override {
    Job job;
    OP_REQUIRES_OK(context, Start(context, context->input(1), false, &job));
    if (job.call.role == kE2) {
      OP_REQUIRES_OK(context, Expect(context->input(2), recipe_.DealtPlanes(), job));
    }
    Tensor* message;
    OP_REQUIRES_OK(context, Allocate(context, 0, {job.words * recipe_.OpenPlanes(0)}, &message));
    const uint64_t* m = Words(context->input(1));
    const uint64_t* dealt = Dealt(job, context->input(2));
    Run(context, job, [&](uint8_t* scratch, int64_t begin, int64_t end) {
      Lut().open(recipe_, job.words, m, dealt, job.mask, Words(message), scratch, begin, end);
    });
    if (job.call.role == kE1) {
      RecordShare(job.call, job.streams[kDealtStream], recipe_.DealtPlanes() * job.words);
    }
    const int own = job.call.role == kE1 ? LevelMaskK1(0) : LevelMaskK2(0);
    job.call.session->Record(job.streams[own], kMasked, Words(message),
                             message->NumElements() * 8);
  }
};

class LutNodeOp : public LutOp {
 public:
  explicit LutNodeOp(OpKernelConstruction* c) : LutOp(c) {
    OP_REQUIRES_OK(c, c->GetAttr("level", &level_));
    OP_REQUIRES(c, level_ >= 0 && level_ < recipe_.levels,
                absl::InvalidArgumentError("level out of range"));
  }

  void Work(OpKernelContext* context) override {
    Job job;
    OP_REQUIRES_OK(context, Start(context, context->input(1), false, &job));
    OP_REQUIRES_OK(context, Expect(context->input(2), recipe_.OpenPlanes(level_), job));
    OP_REQUIRES_OK(context, Expect(context->input(3), recipe_.OpenPlanes(level_), job));
    if (job.call.role == kE2) {
      OP_REQUIRES_OK(context, Expect(context->input(4), recipe_.DealtPlanes(), job));
    }
    const bool done = level_ == recipe_.levels - 1;
    const int planes = done ? 1 : recipe_.OpenPlanes(level_ + 1);
    Tensor* out;
    OP_REQUIRES_OK(context,
                   Allocate(context, 0, {job.words * planes}, &out));
    const uint64_t* m = Words(context->input(1));
    const uint64_t* own = Words(context->input(2));
    const uint64_t* other = Words(context->input(3));
    const uint64_t* dealt = Dealt(job, context->input(4));
    Run(context, job, [&](uint8_t* scratch, int64_t begin, int64_t end) {
      Lut().node(recipe_, level_, job.words, m, own, other, dealt, job.mask, Words(out), scratch,
                 begin, end);
    });
    if (!done) {
      const int next = job.call.role == kE1 ? LevelMaskK1(level_ + 1) : LevelMaskK2(level_ + 1);
      job.call.session->Record(job.streams[next], kMasked, Words(out), out->NumElements() * 8);
    }
  }

 private:
  int level_;
};

class UnpackBitsOp : public Kernel {
 public:
  explicit UnpackBitsOp(OpKernelConstruction* c) : Kernel(c) {}
  void Work(OpKernelContext* context) override {
    const uint64_t* words = Words(context->input(0));
    int64_t n;
    OP_REQUIRES_OK(context, SizeFrom(context->input(1), &n));
    OP_REQUIRES(context, WordsFor(n) == context->input(0).NumElements(),
                absl::InvalidArgumentError("UnpackBits: n does not fit the words"));
    Tensor* out;
    OP_REQUIRES_OK(context, Allocate(context, 0, {n}, &out));
    uint64_t* bits = Words(out);
    ParallelRange(context, WordsFor(n), 64, [&](int64_t begin, int64_t end) {
      for (int64_t w = begin; w < end; ++w) {
        const int64_t count = std::min<int64_t>(64, n - 64 * w);
        for (int64_t i = 0; i < count; ++i) bits[64 * w + i] = words[w] >> i & 1;
      }
    });
  }
};

REGISTER_CPU("Planes", PlanesOp);
REGISTER_CPU("DifferencePlanes", PlanesOp);
REGISTER_CPU("LutDeal", LutDealOp);
REGISTER_CPU("LutOpen", LutOpenOp);
REGISTER_CPU("LutNode", LutNodeOp);
REGISTER_CPU("UnpackBits", UnpackBitsOp);

}  // namespace
}  // namespace tfe_bench
