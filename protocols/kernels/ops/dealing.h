// The dealer's messages, written and read in chunks under masks generated on the fly: what D knows goes to
// E2 less a mask of K1, and E1 makes the mask.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_OPS_DEALING_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_OPS_DEALING_H_

#include <algorithm>
#include <vector>

#include "protocols/kernels/ops/session_op.h"

namespace tfe_bench {

// What one mask pads: `rows` times n elements of `width` bits, each row on whole bytes.
struct Field {
  int width;
  int64_t rows = 1;
  bool xored = false;  // bits: combined with their mask by XOR
};

// The fields of one message, one after the other.
class Fields {
 public:
  // The dealer: values - mask, packed; `values` is overwritten.
  void Put(int field, int64_t row, int64_t first, int64_t count, uint64_t* values) const;
  // The same of value_of(i), i < count.
  template <typename Fn>
  void PutEach(int field, int64_t row, int64_t first, int64_t count, Fn value_of) const {
    alignas(64) uint64_t values[kChunk];
    for (int64_t i = 0; i < count; ++i) values[i] = value_of(i);
    Put(field, row, first, count, values);
  }
  // An evaluator's share of a row: E1's from the mask, E2's from the message.
  void Get(int field, int64_t row, int64_t first, int64_t count, uint64_t* out) const;
  // ... of the first row of every field.
  void GetEach(int64_t first, int64_t count, uint64_t (*out)[kChunk]) const {
    for (size_t f = 0; f < parts_.size(); ++f) Get(static_cast<int>(f), 0, first, count, out[f]);
  }
  // The debug log: at D what was sent, at E1 the masks that became its shares.
  void Record() const;

 private:
  friend class FieldsOp;
  struct Part {
    int width;
    bool xored;
    int64_t offset, row_bytes;  // in the message
    int64_t stride, words;      // in the mask: a row starts on a whole block
    PrfStream stream;
  };
  const Call* call_ = nullptr;
  std::vector<Part> parts_;
  int64_t bytes_ = 0;
  uint8_t* to_ = nullptr;
  const uint8_t* from_ = nullptr;
};

// An op whose dealer's message is fields under the masks tensor, tensor + 1, ...
class FieldsOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

 protected:
  // The dealer's message, in a given tensor or as output 0, of bytes.
  Fields Write(const Call& call, const std::vector<Field>& fields, int64_t n,
               Tensor* message) const;
  Fields Write(OpKernelContext* context, const Call& call, const std::vector<Field>& fields,
               int64_t n) const;
  // The evaluators' shares of it; E2's message must have its size.
  Fields Read(const Call& call, const std::vector<Field>& fields, int64_t n,
              const Tensor& message) const;

 private:
  Fields Start(const Call& call, const std::vector<Field>& fields, int64_t n) const;
};

// An op whose dealer's message is a record of whole words for each element, under one mask.
class RecordsOp : public SiteOp {
 public:
  using SiteOp::SiteOp;

 protected:
  static constexpr int64_t kRun = 128;  // elements at a time: their pads stay in the first-level cache

  // The dealer: fn(pads, begin, end) for runs of elements; `pads` are those of element begin and up.
  template <typename Fn>
  void DealRecords(OpKernelContext* context, const Call& call, int64_t n, int64_t words,
                   int64_t cycles_each, const Tensor& message, Fn fn) const {
    const PrfStream stream = Stream(call, n * words);
    WithPads(context, call, stream, n, words, cycles_each, fn);
    RecordMasked(call, stream, message);
  }
  // An evaluator: the same with its records, E1's from the mask, E2's from the message.
  template <typename Fn>
  void ShareRecords(OpKernelContext* context, const Call& call, int64_t n, int64_t words,
                    int64_t cycles_each, const Tensor& dealt, Fn fn) const {
    if (call.role == kE2) {
      Require(dealt.NumElements() == n * words, "TfeBench: a dealt message has the wrong size");
      const uint64_t* records = Words(dealt);
      Runs(context, n, cycles_each, [&](int64_t begin, int64_t end) {
        fn(records + begin * words, begin, end);
      });
      return;
    }
    const PrfStream stream = Stream(call, n * words);
    WithPads(context, call, stream, n, words, cycles_each, fn);
    RecordShare(call, stream, n * words);
  }

 private:
  template <typename Fn>
  static void Runs(OpKernelContext* context, int64_t n, int64_t cycles_each, Fn fn) {
    ParallelRange(context, (n + kRun - 1) / kRun, cycles_each * kRun, [&](int64_t a, int64_t b) {
      for (int64_t r = a; r < b; ++r) fn(r * kRun, std::min(n, (r + 1) * kRun));
    });
  }
  template <typename Fn>
  static void WithPads(OpKernelContext* context, const Call& call, const PrfStream& stream,
                       int64_t n, int64_t words, int64_t cycles_each, Fn fn) {
    ParallelRange(context, (n + kRun - 1) / kRun, cycles_each * kRun, [&](int64_t a, int64_t b) {
      std::vector<uint64_t> pads(kRun * words + 1);
      for (int64_t r = a; r < b; ++r) {
        const int64_t begin = r * kRun, end = std::min(n, begin + kRun);
        Fill(call, stream, begin * words, (end - begin) * words, pads.data());
        fn(pads.data(), begin, end);
      }
    });
  }
};

}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_OPS_DEALING_H_
