// The reduce-scatter and the all-gather of the circulant algorithms, as parts from which plans are built.
// circulant.cc explains them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// Returns the list s(0) = ranks, s(k+1) = s(k) / 2 rounded up, and so on until 1. For example, the list for 6 ranks is
// 6, 3, 2, 1. In round k, partners are s(k+1) ranks apart, so the list has one more element than there are rounds.
std::vector<std::uint32_t> circulant_skips(std::uint32_t ranks);

// Number of lanes that add_circulant_reduce_scatter() uses for this number of ranks. add_circulant_all_gather() uses as
// many. Both use the lanes with the numbers 0, 1, ...
std::uint16_t circulant_lanes(std::uint32_t ranks);

// Appends a reduce-scatter to the channel of `rank`. Every rank's value of block b is in[b]. Partial sums of block
// b are stored to scratch[b], and the sum of block `rank` over all ranks is stored to out[result]. ranks >= 2.
void add_circulant_reduce_scatter(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks,
                                  std::uint32_t result);

// Appends an all-gather to the channel of `rank`. `own` is the slice with this rank's block: either out[rank], or
// a slice of the input, which is then also copied to out[rank]. At the end, out[b] holds the block of rank b, for
// every b. ranks >= 2.
void add_circulant_all_gather(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks, Slice own);

}  // namespace tutti
