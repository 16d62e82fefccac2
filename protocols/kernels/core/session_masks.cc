// Masks: where their streams start, what tests change about them, and the log of their use.
#include <algorithm>
#include <cstring>

#include "protocols/kernels/core/session.h"

namespace tfe_bench {

Error Session::SetFault(Fault fault) {
  if (!simulated_) return "faults can be seeded in simulated sessions only";
  fault_ = fault;
  return "";
}

Error Session::Replay(int64_t steps) {
  if (!simulated_) return "masks are replayed in simulated sessions only";
  replayed_steps_ = steps;
  return "";
}

Error Session::Alter(uint64_t hi, uint64_t lo, const uint64_t* words, size_t count) {
  if (!simulated_) return "masks are altered in simulated sessions only";
  altered_hi_ = hi;
  altered_lo_ = lo;
  alteration_.assign(words, words + count);
  return "";
}

Error Session::Stream(KeyRole role, int dealer, int64_t site, int64_t step, int64_t iteration,
                      int64_t tensor, uint64_t bytes, PrfStream* out) {
  if (dealer < 0 || dealer > 2) return "mask numbering: dealer out of range";
  const int key = role == kK2 ? dealer : role == kK1 ? (dealer + 1) % 3 : (dealer + 2) % 3;
  if (!has_key_[key]) {
    return "party " + std::to_string(party_) + " does not hold key " + std::to_string(key);
  }
  if (site < 0 || site >> kSiteBits) return "mask numbering: site out of range";
  if (step <= 0 || step >> kStepBits) return "mask numbering: step out of range";
  if (iteration < 0 || iteration >> kIterationBits) return "mask numbering: iteration out of range";
  if (tensor < 0 || tensor >> kTensorBits) return "mask numbering: tensor out of range";
  if (bytes / 16 >= kMaxBlocks) return "mask numbering: tensor too large for one mask";
  const auto source = SourceOf(step);  // held by the session as long as it lives
  if (source) step = source->step;
  step -= replayed_steps_;
  if (fault_ == kReuseCounter) step = 1;
  out->key = source ? &source->keys[key] : &keys_[key];
  out->number = key;
  out->hi = static_cast<uint64_t>(site) << kStepBits | static_cast<uint64_t>(step);
  out->lo = static_cast<uint64_t>(iteration) << 44 | static_cast<uint64_t>(dealer) << 42 |
            static_cast<uint64_t>(role) << 40 | static_cast<uint64_t>(tensor) << 32;
  return "";
}

void Session::Record(const PrfStream& stream, PadUse use, const void* words, size_t bytes) {
  if (!recording_ || bytes == 0) return;
  // FNV-1a: the log is for tests, which only ask whether two words differ.
  uint64_t digest = 1469598103934665603ull;
  const uint8_t* p = static_cast<const uint8_t*>(words);
  for (size_t i = 0; i < bytes; ++i) digest = (digest ^ p[i]) * 1099511628211ull;
  std::lock_guard<std::mutex> lock(record_mutex_);
  records_.push_back({stream.hi, stream.lo, bytes, digest, stream.number, party_, use, 0});
}

std::vector<PadRecord> Session::Records() {
  std::lock_guard<std::mutex> lock(record_mutex_);
  return records_;
}

void FillMask(const Session& session, const PrfStream& stream, uint64_t first_block,
              uint64_t blocks, uint8_t* out) {
  if (session.fault() == kDropMask) {
    std::memset(out, 0, blocks * 16);
    return;
  }
  AesCtr(*stream.key, stream.hi, stream.lo + first_block, blocks, out);
  if (session.fault() == kReuseBlock) {
    for (uint64_t i = 1; i < blocks; i += 2) std::memcpy(out + 16 * i, out + 16 * (i - 1), 16);
  }
  if (const std::vector<uint64_t>* words = session.Altered(stream)) {
    const uint64_t end = std::min<uint64_t>(2 * (first_block + blocks), words->size());
    for (uint64_t i = 2 * first_block; i < end; ++i) {
      uint8_t* at = out + 8 * (i - 2 * first_block);
      uint64_t word;
      std::memcpy(&word, at, 8);
      word ^= (*words)[i];
      std::memcpy(at, &word, 8);
    }
  }
}

}  // namespace tfe_bench
