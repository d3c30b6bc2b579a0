// For each rank, runs the channels of that rank alone, with vector clocks that have one entry per channel of the
// rank. In this run, messages never make a channel wait, so only program order and waits (After) order the
// accesses. A real run has the same order and more. So two accesses that are ordered here are ordered in every
// real run.
//
// In an in-place call, this often does not order an input chunk that one channel reads and another channel
// overwrites with the result. In that case the data gives the order. If a rank reads in[c] in one step only, every
// value that holds this rank's contribution to datum c comes from that step. The value that overwrites in[c] is
// the result (verify() proves that every store to an output is the result), and the result holds that
// contribution. So the store runs after the read. The path from the read to the store consists of messages,
// program order, and memory that one step writes and another step reads. This file checks the accesses to such
// memory without this rule, by program order and waits only, so the argument is not circular.
#include "plan/verify/own_order.h"

#include <algorithm>
#include <limits>
#include <span>
#include <vector>

#include "plan/collective.h"
#include "plan/evaluate.h"
#include "plan/verify/races.h"

namespace tutti {
namespace {

constexpr std::uint32_t kNoChannel = std::numeric_limits<std::uint32_t>::max();

// Checks one rank at a time. The class is a domain of the evaluator (plan/evaluate.h).
class OwnOrder {
 public:
  OwnOrder(const Plan& plan, const VerifyOptions& options) : plan_(plan), options_(options) {}

  bool suffices_for(std::uint32_t rank) {
    bind(rank);
    for (bool moved = true; moved;) {
      moved = false;
      for (channel_ = 0; channel_ < width_ && ordered_; ++channel_) {
        moved |= advance(channels()[channel_], cursors_[channel_], options_.tiles, ~std::uint64_t{0}, *this) > 0;
      }
    }
    return ordered_ && std::all_of(cursors_.begin(), cursors_.end(),
                                   [&](const Cursor& cursor) { return finished(cursor, options_.tiles); });
  }

  bool receive_ready(std::uint16_t) const { return ordered_; }
  bool send_ready(std::uint16_t) const { return ordered_; }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t tile) const {
    const Cursor& other = cursors_[channel];
    return ordered_ && (other.tile > tile || (other.tile == tile && other.step > step));
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile) {
    if (!ordered_) return;
    const auto index = static_cast<std::uint32_t>(&step - channel.steps.data());
    const std::span<std::uint32_t> own = clock(channel_, tile, index);
    if (tile > 0 || index > 0) {
      const std::span<const std::uint32_t> before =
          index > 0 ? clock(channel_, tile, index - 1)
                    : clock(channel_, tile - 1, static_cast<std::uint32_t>(channel.steps.size()) - 1);
      std::copy(before.begin(), before.end(), own.begin());
    } else {
      std::fill(own.begin(), own.end(), 0);
    }
    for (std::uint32_t i = cursors_[channel_].after; i < channel.after.size() && channel.after[i].step == index; ++i) {
      const After& after = channel.after[i];
      if (tile < after.tiles_before) continue;
      const auto other = clock(after.other_channel, tile - after.tiles_before, after.other_step);
      for (std::uint32_t c = 0; c < width_; ++c) own[c] = std::max(own[c], other[c]);
    }
    ++own[channel_];
    for_each_chunk(plan_.shape, rank_, step, step.source, [&](const Slice& slice) {
      if (!read_before_its_result(slice)) read(place(slice, tile), own);
    });
    for_each_chunk(plan_.shape, rank_, step, step.sink, [&](const Slice& slice) { write(place(slice, tile), own); });
  }

 private:
  const std::vector<Channel>& channels() const { return plan_.ranks[rank_].channels; }

  void bind(std::uint32_t rank) {
    rank_ = rank;
    width_ = static_cast<std::uint32_t>(channels().size());
    ordered_ = true;
    cursors_.assign(width_, {});
    first_clock_.assign(1, 0);
    input_reads_.assign(input_chunks(plan_.shape, rank), 0);
    for (const Channel& channel : channels()) {
      first_clock_.push_back(first_clock_.back() + channel.steps.size() * options_.tiles * width_);
      for (const Step& step : channel.steps) {
        for_each_chunk(plan_.shape, rank, step, step.source, [&](const Slice& slice) {
          if (slice.space == Space::kInput) ++input_reads_[slice.chunk];
        });
      }
    }
    clocks_.resize(first_clock_.back());
    const std::size_t locations = location_count(plan_.shape, rank, options_.tiles);
    writer_.assign(locations, kNoChannel);
    written_.assign(locations, 0);
    reads_.assign(locations * width_, 0);
  }

  std::span<std::uint32_t> clock(std::uint32_t channel, std::uint64_t tile, std::uint32_t step) {
    const std::size_t index = tile * channels()[channel].steps.size() + step;
    return std::span(clocks_).subspan(first_clock_[channel] + index * width_, width_);
  }
  std::size_t place(const Slice& slice, std::uint64_t tile) const {
    return location_of(plan_.shape, options_.in_place, rank_, slice, {.tile = tile, .tiles = options_.tiles});
  }

  // True if the call is in place, `slice` is an input chunk that exactly one step reads, and its value is part of
  // the result that overwrites it. Then the read happens before the store of the result, as the comment at the top
  // of this file explains.
  bool read_before_its_result(const Slice& slice) const {
    if (!options_.in_place || slice.space != Space::kInput || input_reads_[slice.chunk] != 1) return false;
    const std::uint32_t alias = output_alias(plan_.shape, rank_, slice.chunk);
    if (alias == kNoChunk) return false;
    const ExpectedOutput result = expected_output(plan_.shape, rank_, alias);
    return result.datum == slice.chunk && (result.contributor == kEveryRank || result.contributor == rank_);
  }

  bool after_last_write(std::size_t place, std::span<const std::uint32_t> now) const {
    return writer_[place] == kNoChannel || now[writer_[place]] >= written_[place];
  }
  void read(std::size_t place, std::span<const std::uint32_t> now) {
    if (!after_last_write(place, now)) ordered_ = false;
    reads_[place * width_ + channel_] = now[channel_];
  }
  void write(std::size_t place, std::span<const std::uint32_t> now) {
    if (!after_last_write(place, now)) ordered_ = false;
    for (std::uint32_t c = 0; c < width_; ++c) {
      if (now[c] < reads_[place * width_ + c]) ordered_ = false;
    }
    writer_[place] = channel_;
    written_[place] = now[channel_];
  }

  const Plan& plan_;
  const VerifyOptions& options_;
  std::uint32_t rank_ = 0;
  std::uint32_t width_ = 0;
  std::uint32_t channel_ = 0;  // the channel that is being advanced
  bool ordered_ = true;
  std::vector<Cursor> cursors_;
  // indexed by channel: position in clocks_ of the clock of its first step in the first tile
  std::vector<std::size_t> first_clock_;
  std::vector<std::uint32_t> clocks_;  // channel x tile x step x channel: the clock of each step
  std::vector<std::uint32_t> input_reads_;
  std::vector<std::uint32_t> writer_;  // indexed by location (races.h): the channel of the last write, or kNoChannel
  std::vector<std::uint32_t> written_;
  // location x channel: the channel's own clock entry at its last read of the location; 0: no read by the channel was
  // recorded (those for which read_before_its_result() is true are not)
  std::vector<std::uint32_t> reads_;
};

}  // namespace

bool channels_share_memory(const Plan& plan, const VerifyOptions& options) {
  std::vector<std::uint32_t> accessing_channel;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const std::vector<Channel>& channels = plan.ranks[rank].channels;
    if (channels.size() < 2) continue;
    accessing_channel.assign(location_count(plan.shape, rank, 1), kNoChannel);
    for (std::uint32_t c = 0; c < channels.size(); ++c) {
      for (const Step& step : channels[c].steps) {
        bool shared = false;
        for (const Slice& first : {step.source, step.sink}) {
          for_each_chunk(plan.shape, rank, step, first, [&](const Slice& slice) {
            const std::size_t place = location_of(plan.shape, options.in_place, rank, slice, {.tile = 0, .tiles = 1});
            shared |= accessing_channel[place] != kNoChannel && accessing_channel[place] != c;
            accessing_channel[place] = c;
          });
        }
        if (shared) return true;
      }
    }
  }
  return false;
}

bool own_order_suffices(const Plan& plan, const VerifyOptions& options) {
  OwnOrder order(plan, options);
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    if (plan.ranks[rank].channels.size() > 1 && !order.suffices_for(rank)) return false;
  }
  return true;
}

}  // namespace tutti
