#include "protocols/kernels/core/aes_ctr.h"

#include <cstdio>
#include <cstdlib>

#include "protocols/kernels/core/cpu.h"

namespace tfe_bench {
namespace {


void RequireAes() {
  if (AesAvailable()) return;
  // The library refuses to load on such a CPU; reaching this line is a bug, not a slow path.
  std::fputs("tfe_bench: this CPU has no AES instructions\n", stderr);
  std::abort();
}

bool UseVaes() {
  RequireAes();
  return Cpu().vaes;
}

}  // namespace

bool AesAvailable() { return Cpu().aes; }

void ExpandAesKey(const uint8_t key[16], AesKey* out) {
  RequireAes();
  internal::ExpandAesKeyAesni(key, out);
}

void AesCtr(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out) {
  static const auto aes_ctr = UseVaes() ? internal::AesCtrVaes : internal::AesCtrAesni;
  aes_ctr(key, hi, lo, blocks, out);
}

void AesKeystream(const AesKey& key, uint64_t first, uint64_t blocks, uint8_t* out) {
  static const auto keystream =
      UseVaes() ? internal::AesKeystreamVaes : internal::AesKeystreamAesni;
  keystream(key, first, blocks, out);
}

void AesEncryptBlock(const AesKey& key, const uint8_t in[16], uint8_t out[16]) {
  RequireAes();
  internal::AesEncryptBlockAesni(key, in, out);
}

}  // namespace tfe_bench
