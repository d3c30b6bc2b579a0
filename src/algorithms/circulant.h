// The two halves of the circulant algorithms, for the plans that are made of them; circulant.cc tells the story.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti {

// s(0) = ranks, s(k+1) = s(k) / 2 rounded up, ..., 1: one entry more than there are rounds.
std::vector<std::uint32_t> circulant_skips(std::uint32_t ranks);

// Lanes that either half uses for so many ranks, from lane 0 on.
std::uint16_t circulant_lanes(std::uint32_t ranks);

// Block b starts in in[b] of every rank; partial sums stand in scratch[b]; the sum of block `rank` goes to out[result].
// ranks >= 2.
void add_circulant_reduce_scatter(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks,
                                  std::uint32_t result);

// `own` holds this rank's block: out[rank], or a slice of the input, which is then copied there. Block b ends in
// out[b]. ranks >= 2.
void add_circulant_all_gather(ChannelBuilder& channel, std::uint32_t rank, std::uint32_t ranks, Slice own);

}  // namespace tutti
