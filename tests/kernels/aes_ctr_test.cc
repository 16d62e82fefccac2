#include "protocols/kernels/core/aes_ctr.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "protocols/kernels/core/cpu.h"
#include "tests/kernels/check.h"

namespace {

using tfe_bench::AesKey;

std::vector<uint8_t> FromHex(const std::string& hex) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string ToHex(const uint8_t* bytes, size_t size) {
  static const char kDigits[] = "0123456789abcdef";
  std::string hex;
  for (size_t i = 0; i < size; ++i) {
    hex += kDigits[bytes[i] >> 4];
    hex += kDigits[bytes[i] & 15];
  }
  return hex;
}

AesKey KeyFromHex(const std::string& hex) {
  AesKey key;
  tfe_bench::ExpandAesKey(FromHex(hex).data(), &key);
  return key;
}

std::string EncryptHex(const std::string& key, const std::string& plaintext) {
  uint8_t out[16];
  tfe_bench::AesEncryptBlock(KeyFromHex(key), FromHex(plaintext).data(), out);
  return ToHex(out, 16);
}

// The counter block of aes_ctr.h, written out byte by byte.
std::vector<uint8_t> Reference(const AesKey& key, uint64_t hi, uint64_t lo, uint64_t blocks) {
  std::vector<uint8_t> out(16 * blocks);
  for (uint64_t i = 0; i < blocks; ++i) {
    uint8_t counter[16];
    for (int b = 0; b < 8; ++b) {
      counter[b] = static_cast<uint8_t>((lo + i) >> (8 * b));
      counter[8 + b] = static_cast<uint8_t>(hi >> (8 * b));
    }
    tfe_bench::AesEncryptBlock(key, counter, out.data() + 16 * i);
  }
  return out;
}

using AesKeystreamFunction = void (*)(const AesKey&, uint64_t, uint64_t, uint8_t*);

// Against single blocks, whose counters carry from byte to byte.
void CheckKeystream(AesKeystreamFunction keystream) {
  const AesKey key = KeyFromHex("2b7e151628aed2a6abf7158809cf4f3c");
  for (const uint64_t first : {0ull, 250ull, 65530ull, 0xffffffffull, 0x7fffffffffffffe0ull}) {
    for (uint64_t blocks = 0; blocks <= 70; ++blocks) {
      std::vector<uint8_t> want(16 * blocks), got(16 * blocks + 2, 0xa5);
      for (uint64_t i = 0; i < blocks; ++i) {
        uint8_t counter[16] = {0};
        for (int b = 0; b < 8; ++b) counter[15 - b] = static_cast<uint8_t>((first + i) >> (8 * b));
        tfe_bench::AesEncryptBlock(key, counter, want.data() + 16 * i);
      }
      keystream(key, first, blocks, got.data() + 1);
      CHECK_EQ(ToHex(got.data() + 1, want.size()), ToHex(want.data(), want.size()));
      CHECK_EQ(got.front(), 0xa5);
      CHECK_EQ(got.back(), 0xa5);
    }
  }
}

using AesCtrFunction = void (*)(const AesKey&, uint64_t, uint64_t, uint64_t, uint8_t*);

void CheckAgainstReference(AesCtrFunction aes_ctr) {
  const AesKey key = KeyFromHex("2b7e151628aed2a6abf7158809cf4f3c");
  const uint64_t starts[][2] = {{0, 0},
                                {1, 1},
                                {0x0123456789abcdef, 0xfffffffd},
                                {0x8000000000000000, 0x7ffffffffffffffe},
                                {0xffffffffffffffff, 0xffffffffffffff00}};
  for (const auto& start : starts) {
    for (uint64_t blocks = 0; blocks <= 70; ++blocks) {
      const std::vector<uint8_t> want = Reference(key, start[0], start[1], blocks);
      // An odd offset and guard bytes: any alignment works and nothing else is written.
      std::vector<uint8_t> buffer(16 * blocks + 2, 0xa5);
      aes_ctr(key, start[0], start[1], blocks, buffer.data() + 1);
      CHECK_EQ(ToHex(buffer.data() + 1, want.size()), ToHex(want.data(), want.size()));
      CHECK_EQ(buffer.front(), 0xa5);
      CHECK_EQ(buffer.back(), 0xa5);
    }
  }
}

}  // namespace

TEST(ThisMachineHasAes) { CHECK(tfe_bench::AesAvailable()); }

TEST(Fips197AppendixB) {
  CHECK_EQ(EncryptHex("2b7e151628aed2a6abf7158809cf4f3c", "3243f6a8885a308d313198a2e0370734"),
           "3925841d02dc09fbdc118597196a0b32");
}

TEST(Fips197AppendixC1) {
  CHECK_EQ(EncryptHex("000102030405060708090a0b0c0d0e0f", "00112233445566778899aabbccddeeff"),
           "69c4e0d86a7b0430d8cdb78070b4c55a");
}

TEST(Fips197AppendixA1LastRoundKey) {
  const AesKey key = KeyFromHex("2b7e151628aed2a6abf7158809cf4f3c");
  CHECK_EQ(ToHex(key.round_keys + 160, 16), "d014f9a8c9ee2589e13f0cc8b6630ca6");
}

TEST(Sp80038aEcbVectors) {
  const std::string key = "2b7e151628aed2a6abf7158809cf4f3c";
  CHECK_EQ(EncryptHex(key, "6bc1bee22e409f96e93d7e117393172a"),
           "3ad77bb40d7a3660a89ecaf32466ef97");
  CHECK_EQ(EncryptHex(key, "ae2d8a571e03ac9c9eb76fac45af8e51"),
           "f5d3d58503b9699de785895a96fdbaaf");
  CHECK_EQ(EncryptHex(key, "30c81c46a35ce411e5fbc1191a0a52ef"),
           "43b1cd7f598ece23881b00e3ed030688");
  CHECK_EQ(EncryptHex(key, "f69f2445df4f9b17ad2b417be66c3710"),
           "7b0c785e27e8ad3f8223207104725dd4");
}

// SP 800-38A F.5.1: its counter blocks f0..ff and f0..ff+1, as (hi, lo) of our byte order. The
// standard counts in big-endian byte 15, so each block is its own call here.
TEST(Sp80038aCtrVectors) {
  const AesKey key = KeyFromHex("2b7e151628aed2a6abf7158809cf4f3c");
  const uint64_t lo = 0xf7f6f5f4f3f2f1f0;
  const uint64_t his[] = {0xfffefdfcfbfaf9f8, 0x00fffdfcfbfaf9f8};
  const char* want[] = {"ec8cdf7398607cb0f2d21675ea9ea1e4", "362b7c3c6773516318a077d7fc5073ae"};
  for (int i = 0; i < 2; ++i) {
    uint8_t out[16];
    tfe_bench::AesCtr(key, his[i], lo, 1, out);
    CHECK_EQ(ToHex(out, 16), want[i]);
  }
}

// AESAVS appendices B and D: zero key with GFSbox text, VarKey and KeySbox with zero text.
TEST(AesavsKnownAnswers) {
  const std::string zero(32, '0');
  CHECK_EQ(EncryptHex(zero, "f34481ec3cc627bacd5dc3fb08f273e6"),
           "0336763e966d92595a567cc9ce537f5e");
  CHECK_EQ(EncryptHex(zero, "9798c4640bad75c7c3227db910174e72"),
           "a9a1631bf4996954ebc093957b234589");
  CHECK_EQ(EncryptHex("10a58869d74be5a374cf867cfb473859", zero),
           "6d251e6944b051e04eaa6fb4dbf78465");
  CHECK_EQ(EncryptHex("80000000000000000000000000000000", zero),
           "0edd33d3c621e546455bd8ba1418bec8");
  CHECK_EQ(EncryptHex(zero, "80000000000000000000000000000000"),
           "3ad78e726c1ec02b7ebfe92b23d9ec34");
}

TEST(AesniCtrMatchesSingleBlocks) { CheckAgainstReference(tfe_bench::internal::AesCtrAesni); }

TEST(VaesCtrMatchesSingleBlocks) {
  if (!tfe_bench::Cpu().vaes) return;
  CheckAgainstReference(tfe_bench::internal::AesCtrVaes);
}

TEST(AesniKeystreamMatchesSingleBlocks) {
  CheckKeystream(tfe_bench::internal::AesKeystreamAesni);
}

TEST(VaesKeystreamMatchesSingleBlocks) {
  if (!tfe_bench::Cpu().vaes) return;
  CheckKeystream(tfe_bench::internal::AesKeystreamVaes);
}

TEST(DispatchedKeystreamMatchesSingleBlocks) { CheckKeystream(tfe_bench::AesKeystream); }

TEST(DispatchedCtrMatchesSingleBlocks) { CheckAgainstReference(tfe_bench::AesCtr); }
