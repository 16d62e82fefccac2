// AES-128 in counter mode: the pseudorandom function behind every correlated mask.
// Hardware AES only: a table-driven AES would leak its key through the cache.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_AES_CTR_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_AES_CTR_H_

#include <cstdint>

namespace tfe_bench {

struct AesKey {
  alignas(64) uint8_t round_keys[176];
};

// Whether the CPU has AES instructions. Without them the functions below abort.
bool AesAvailable();

void ExpandAesKey(const uint8_t key[16], AesKey* out);

// out[i] = AES_key(counter_i) for i in [0, blocks), 16 bytes each. The bytes of counter_i are
// lo + i (little-endian, bytes 0..7) and hi (little-endian, bytes 8..15). The caller ensures
// that lo + blocks does not wrap. Any alignment of `out` will do.
void AesCtr(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out);

// out[i] = AES_key(first + i) as 16 bytes each, the counter in 16 bytes big-endian: the keystream of
// counter mode (NIST SP 800-38A) from an initial counter of zero, as other libraries make it.
void AesKeystream(const AesKey& key, uint64_t first, uint64_t blocks, uint8_t* out);

// One block in the byte order of FIPS-197, for the published test vectors.
void AesEncryptBlock(const AesKey& key, const uint8_t in[16], uint8_t out[16]);

// The compiled paths behind these.  Only aes_ctr.cc and the tests call them directly.
namespace internal {

// aes_ctr_aesni.cc
void ExpandAesKeyAesni(const uint8_t key[16], AesKey* out);
void AesEncryptBlockAesni(const AesKey& key, const uint8_t in[16], uint8_t out[16]);
void AesCtrAesni(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out);
void AesKeystreamAesni(const AesKey& key, uint64_t first, uint64_t blocks, uint8_t* out);

// aes_ctr_avx512.cc, needs CpuFeatures::vaes
void AesCtrVaes(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out);
void AesKeystreamVaes(const AesKey& key, uint64_t first, uint64_t blocks, uint8_t* out);

}  // namespace internal
}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_AES_CTR_H_
