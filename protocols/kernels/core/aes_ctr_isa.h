// The compiled paths behind aes_ctr.h. Only aes_ctr.cc and the tests call these directly.
#ifndef TFE_BENCH_PROTOCOLS_KERNELS_CORE_AES_CTR_ISA_H_
#define TFE_BENCH_PROTOCOLS_KERNELS_CORE_AES_CTR_ISA_H_

#include <cstdint>

#include "protocols/kernels/core/aes_ctr.h"

namespace tfe_bench {
namespace internal {

// aes_ctr_aesni.cc
void ExpandAesKeyAesni(const uint8_t key[16], AesKey* out);
void AesEncryptBlockAesni(const AesKey& key, const uint8_t in[16], uint8_t out[16]);
void AesCtrAesni(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out);

// aes_ctr_avx512.cc, needs CpuFeatures::vaes
void AesCtrVaes(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks, uint8_t* out);

}  // namespace internal
}  // namespace tfe_bench

#endif  // TFE_BENCH_PROTOCOLS_KERNELS_CORE_AES_CTR_ISA_H_
