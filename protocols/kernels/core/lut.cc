#include "protocols/kernels/core/lut.h"

#include "protocols/kernels/core/cpu.h"

namespace tfe_bench {
namespace {

int Nodes(const LutRecipe& r, int level) { return level == 0 ? r.chunks : r.groups[level - 1]; }

}  // namespace

int MonomialsOf(int radix, bool last) {
  return last ? 3 * (1 << (radix - 1)) - 2 * radix - 1 : (1 << (radix + 1)) - 2 * radix - 2;
}

int LutRecipe::ExchangePlanes(int level) const { return 2 * Nodes(*this, level) - 1; }

int LutRecipe::TablePlanes() const {
  int planes = 0;
  for (int c = 0; c < chunks; ++c) planes += (1 << width[c]) - 1;
  return planes;
}

int LutRecipe::MonomialPlanes(int level) const {
  int planes = 0;
  for (int g = 0; g < groups[level]; ++g) {
    planes += MonomialsOf(group[level][g], g == groups[level] - 1);
  }
  return planes;
}

int LutRecipe::DealtPlanes() const {
  int planes = TablePlanes() + (absorb ? 1 : 0);
  for (int level = 0; level < levels; ++level) planes += MonomialPlanes(level);
  return planes;
}

const char* LutRecipe::Check() const {
  if (bits < 2 || bits > 128) return "bits must be 2..128";
  if (chunks < 1 || chunks > kMaxChunks) return "too many chunks";
  int sum = 0;
  for (int c = 0; c < chunks; ++c) {
    if (width[c] < 1 || width[c] > kMaxChunkWidth) return "a chunk is 1 to 6 bits wide";
    sum += width[c];
  }
  if (sum != bits - 1) return "the chunks must cover all bits but the top one";
  if (levels < 1 || levels > kMaxLevels) return "too many levels";
  for (int level = 0; level < levels; ++level) {
    int members = 0;
    if (groups[level] < 1 || groups[level] > kMaxChunks) return "a level has no or too many groups";
    for (int g = 0; g < groups[level]; ++g) {
      if (group[level][g] < 1 || group[level][g] > kMaxRadix) return "a group has 1 to 8 members";
      members += group[level][g];
    }
    if (members != Nodes(*this, level)) return "the groups of a level must hold all its nodes";
  }
  if (groups[levels - 1] != 1) return "the last level must have one group";
  return nullptr;
}

int64_t LutScratchWords(const LutRecipe& r) {
  int most = r.DealtPlanes();
  for (int level = 0; level < r.levels; ++level) {
    if (r.ExchangePlanes(level) > most) most = r.ExchangePlanes(level);
  }
  // dealt pads or dealt planes, two mask streams, masks or masked_bits values, one spare
  return (static_cast<int64_t>(r.DealtPlanes()) + 4 * most + 8) * kSuperWords + 8;
}

const LutFunctions& Lut() {
  static const LutFunctions* chosen = Cpu().avx512 ? LutAvx512() : LutAvx2();
  return *chosen;
}

}  // namespace tfe_bench
