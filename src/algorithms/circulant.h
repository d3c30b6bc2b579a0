// The two halves of the circulant algorithms, for plans that are built from them. circulant.cc explains them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// Returns s(0) = ranks, s(k+1) = s(k) / 2 rounded up, ..., 1. It has one more element than there are rounds.
std::vector<std::uint32_t> circulant_skips(std::uint32_t ranks);

// Number of lanes that either half uses for this number of ranks, starting with lane 0.
std::uint16_t circulant_lanes(std::uint32_t ranks);

// Appends a reduce-scatter. Block b starts in in[b] of every rank, partial sums are stored in scratch[b], and the
// sum of block `rank` is stored to out[result]. ranks >= 2.
void add_circulant_reduce_scatter(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks,
                                  std::uint32_t result);

// Appends an all-gather. `own` holds this rank's block. It is out[rank], or a slice of the input that is copied to
// out[rank]. At the end, block b is in out[b]. ranks >= 2.
void add_circulant_all_gather(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks, Slice own);

}  // namespace tutti
