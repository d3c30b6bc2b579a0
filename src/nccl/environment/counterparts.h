// The algorithms and protocols of NCCL by number and name, and the algorithms of Tutti that correspond to NCCL's. Used
// for NCCL_ALGO and NCCL_PROTO, and for tuner plugins, which count algorithms and protocols with the same numbers.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "tutti/types.h"

namespace tutti::nccl {

// The words of NCCL_ALGO and NCCL_PROTO. The index of a word is NCCL's number for this algorithm or protocol, and the
// number of its bit in AllowedValues::allowed.
inline constexpr std::array<std::string_view, 7> kAlgorithmWords = {
    "Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
inline constexpr std::array<std::string_view, 3> kProtocolWords = {"LL", "LL128", "Simple"};
inline constexpr std::size_t kTreeNumber = 0, kRingNumber = 1, kPatNumber = 6;  // indexes into kAlgorithmWords
enum ProtocolBit : std::uint32_t { kLlBit = 1, kLl128Bit = 2, kSimpleBit = 4, kAllProtocols = 7 };
inline constexpr std::uint32_t kAllAlgorithms = (1u << kAlgorithmWords.size()) - 1;

// An algorithm of NCCL for one collective, and Tutti's algorithm that corresponds to it. kCounterparts has no entries
// for broadcast and reduce, because NCCL has only rings for these, so there is nothing to select.
struct Counterpart {
  std::size_t function;  // index into kFunctionNames (parse.h); also NCCL's number for the collective
  CollectiveKind kind;
  std::size_t number;   // NCCL's number for the algorithm
  Algorithm algorithm;  // Tutti's corresponding algorithm

  constexpr std::uint32_t bit() const { return 1u << number; }  // its bit in AllowedValues::allowed
};
inline constexpr auto kCounterparts = std::to_array<Counterpart>({
    {4, CollectiveKind::kAllReduce, kTreeNumber, Algorithm::kDoubleTree},
    {4, CollectiveKind::kAllReduce, kRingNumber, Algorithm::kRing},
    {2, CollectiveKind::kAllGather, kRingNumber, Algorithm::kRing},
    {2, CollectiveKind::kAllGather, kPatNumber, Algorithm::kCirculant},
    {3, CollectiveKind::kReduceScatter, kRingNumber, Algorithm::kRing},
    {3, CollectiveKind::kReduceScatter, kPatNumber, Algorithm::kCirculant},
});

}  // namespace tutti::nccl
