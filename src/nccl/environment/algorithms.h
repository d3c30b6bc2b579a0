// Sets of NCCL's algorithms: those of Tutti that correspond to them, and the texts of ncclCollConfig_t::algSelection.
// Functions without state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "nccl/environment/counterparts.h"
#include "tutti/result.h"
#include "tutti/types.h"

namespace tutti::nccl {

// The algorithms of Tutti that correspond to algorithms of NCCL for one collective.
struct Counterparts {
  std::size_t known = 0;           // how many there are in all; 0: NCCL has nothing to select for this collective
  std::vector<Algorithm> allowed;  // those of the set that was passed
};

// `algorithms`: a set of NCCL's algorithms.
Counterparts counterparts(CollectiveKind kind, std::uint32_t algorithms);

// The selection of ncclCollConfig_t::algSelection.
struct AlgorithmSelection {
  std::uint32_t algorithms = kAllAlgorithms;  // a set of NCCL's algorithms: those that the text allows
  bool excludes = false;  // the text begins with "^", so everything that it does not name is allowed
  // For some allowed algorithm, the text allows only a part of the protocols.
  bool limits_protocols = false;
};

// Parses a text such as "ring", "tree,ring", "ring_ll128,tree" or "^symk". A word is the name of an algorithm
// ("collnet_direct" and "collnetdirect" are the same), of an algorithm and a protocol, or of NCCL's symmetric kernels
// ("symk", or "symk_" and a name), of which Tutti has none. Upper and lower case are equal. An empty text allows all.
// Errors: kInvalidArgument (an unknown word, or no word after "^").
Result<AlgorithmSelection> parse_algorithm_selection(std::string_view text);

}  // namespace tutti::nccl
