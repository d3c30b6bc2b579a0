// Vector clocks as wide as one rank has channels, rank after rank: a run of its channels in which messages never make
// anybody wait. Fewer edges than there are, so what is ordered here is ordered in every run.
//
// In place that is not enough for an input that one channel reads and another overwrites with the result. There the
// value itself is the order. If a rank reads in[c] in one step only, whatever holds this rank's contribution to c came
// from that step; whatever replaces in[c] is the result (every store to an output is proved to be) and holds it, so it
// was stored later. The way from
// the read to the store leads through messages, program order and memory that is handed from step to step, and the
// latter is checked here by waits alone: nothing is concluded from itself.
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

// One rank at a time; the domain of evaluate.h.
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
    if (step.source.space != Space::kNone && !read_before_its_result(step.source)) read(place(step.source, tile), own);
    if (step.sink.space != Space::kNone) write(place(step.sink, tile), own);
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
        if (step.source.space == Space::kInput) ++input_reads_[step.source.chunk];
      }
    }
    clocks_.resize(first_clock_.back());
    const std::size_t places = place_count(plan_.shape, rank, options_.tiles);
    writer_.assign(places, kNoChannel);
    written_.assign(places, 0);
    reads_.assign(places * width_, 0);
  }

  std::span<std::uint32_t> clock(std::uint32_t channel, std::uint64_t tile, std::uint32_t step) {
    const std::size_t index = tile * channels()[channel].steps.size() + step;
    return std::span(clocks_).subspan(first_clock_[channel] + index * width_, width_);
  }
  std::size_t place(const Slice& slice, std::uint64_t tile) const {
    return place_of(plan_.shape, options_.in_place, rank_, slice, {.tile = tile, .tiles = options_.tiles});
  }

  // The input that this is, read once, is part of what replaces it.
  bool read_before_its_result(const Slice& slice) const {
    if (!options_.in_place || slice.space != Space::kInput || input_reads_[slice.chunk] != 1) return false;
    const std::uint32_t alias = output_alias(plan_.shape, rank_, slice.chunk);
    if (alias == kNoChunk) return false;
    const Wanted result = wanted(plan_.shape, rank_, alias);
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
  std::uint32_t channel_ = 0;  // that is being advanced
  bool ordered_ = true;
  std::vector<Cursor> cursors_;
  std::vector<std::size_t> first_clock_;  // of each channel
  std::vector<std::uint32_t> clocks_;     // channel x tile x step x channel
  std::vector<std::uint32_t> input_reads_;
  std::vector<std::uint32_t> writer_;  // of each place: the channel of the last write
  std::vector<std::uint32_t> written_;
  std::vector<std::uint32_t> reads_;  // place x channel: the last read
};

}  // namespace

bool channels_share_memory(const Plan& plan, const VerifyOptions& options) {
  std::vector<std::uint32_t> toucher;
  for (std::uint32_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const std::vector<Channel>& channels = plan.ranks[rank].channels;
    if (channels.size() < 2) continue;
    toucher.assign(place_count(plan.shape, rank, 1), kNoChannel);
    for (std::uint32_t c = 0; c < channels.size(); ++c) {
      for (const Step& step : channels[c].steps) {
        for (const Slice& slice : {step.source, step.sink}) {
          if (slice.space == Space::kNone) continue;
          const std::size_t place = place_of(plan.shape, options.in_place, rank, slice, {.tile = 0, .tiles = 1});
          if (toucher[place] != kNoChannel && toucher[place] != c) return true;
          toucher[place] = c;
        }
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
