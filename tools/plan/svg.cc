// Draws in two stages. Schedule runs one tile of the plan and computes the time of each step. Drawing places the
// boxes and lines, and writes the SVG elements.
#include "tools/plan/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/collective.h"
#include "plan/evaluate.h"
#include "tools/common/svg_drawing.h"

namespace tutti::tool {
namespace {

// ---- Schedule: computes when each step runs. It is a domain (plan/evaluate.h) that has times as its values. ----

// One step of one channel of one rank, and the values that it sends or stores: one for each chunk of its run
// (Step::run). The first value determines the colour of the box.
struct Box {
  struct Value {
    // number of the datum that the value belongs to (plan/collective.h)
    std::uint32_t chunk = 0;
    // the rank whose input the value is; has no meaning if values were added
    std::uint32_t contributor = 0;
    // reductions: the value contains the inputs of all ranks; other collectives: as Box::stores
    bool complete = false;
  };
  std::uint32_t rank = 0;
  std::uint32_t channel = 0;
  std::uint32_t time = 0;
  std::vector<Value> values{};  // at least one
  bool adds = false;
  bool completes = false;
  // the step stores the value in the output
  bool stores = false;
};

struct MessageLine {
  // the box that sends and the box that receives, as indices into Schedule::boxes
  std::size_t from = 0;
  std::size_t to = 0;
};

class Schedule {
 public:
  explicit Schedule(const Plan& plan) : plan_(plan) {}

  // Runs the plan and fills boxes, lines and times. Returns false if the plan does not run to its end.
  bool run();

  bool receive_ready(std::uint16_t port) { return !queue(port).empty(); }
  bool send_ready(std::uint16_t) const { return true; }
  bool reached(std::uint32_t channel, std::uint32_t step, std::uint64_t) const {
    return done_[rank_][channel].size() > step;
  }
  void apply(const Channel& channel, const Step& step, std::uint64_t tile);

  std::vector<Box> boxes;
  std::vector<MessageLine> lines;
  std::uint32_t times = 0;

 private:
  // identifies a connection: sender, receiver, lane
  using Key = std::tuple<std::uint32_t, std::uint32_t, std::uint16_t>;
  std::deque<std::size_t>& queue(std::uint16_t port) {
    const Port& end = program_->ports[port];
    return queues_[end.direction == Direction::kSend ? Key{rank_, end.peer, end.lane} : Key{end.peer, rank_, end.lane}];
  }

  // The value that the current rank has in a chunk of its input, output or scratch memory.
  Box::Value value_of(const Slice& chunk);

  const Plan& plan_;
  // the messages in each connection, each as the index of the box that sent it
  std::map<Key, std::deque<std::size_t>> queues_;
  // indexed by rank, then channel, then step: the index of its box; only steps that have run
  std::vector<std::vector<std::vector<std::size_t>>> done_;
  // indexed by rank and scratch chunk: the value that was stored last
  std::map<std::pair<std::uint32_t, std::uint32_t>, Box::Value> scratch_;
  std::uint32_t rank_ = 0;
  std::uint32_t channel_ = 0;
  const Channel* program_ = nullptr;
};

Box::Value Schedule::value_of(const Slice& chunk) {
  if (chunk.space == Space::kScratch) return scratch_[{rank_, chunk.chunk}];
  if (chunk.space == Space::kInput) return {.chunk = chunk.chunk, .contributor = rank_};
  const ExpectedOutput known = expected_output(plan_.shape, rank_, chunk.chunk);
  return {.chunk = known.datum, .contributor = known.contributor, .complete = true};
}

void Schedule::apply(const Channel& channel, const Step& step, std::uint64_t) {
  std::vector<std::size_t>& done = done_[rank_][channel_];
  Box box{.rank = rank_, .channel = channel_, .time = done.empty() ? 0 : boxes[done.back()].time + 1};
  for_each_chunk(plan_.shape, rank_, step, step.source,
                 [&](const Slice& chunk) { box.values.push_back(value_of(chunk)); });
  for (const After& after : channel.after) {
    if (after.step == done.size() && after.tiles_before == 0)
      box.time = std::max(box.time, boxes[done_[rank_][after.other_channel][after.other_step]].time + 1);
  }
  for (std::uint16_t port : channel.receives(step)) {
    const std::size_t from = queue(port).front();
    queue(port).pop_front();
    lines.push_back({.from = from, .to = boxes.size()});
    box.time = std::max(box.time, boxes[from].time + 1);
    for (std::size_t i = 0; i < boxes[from].values.size(); ++i) {
      if (i == box.values.size()) box.values.emplace_back();
      const bool was_complete = box.values[i].complete;
      box.values[i] = boxes[from].values[i];
      box.values[i].complete |= was_complete;
    }
  }
  box.adds = step.receive_count + (step.source.space != Space::kNone ? 1 : 0) > 1;
  box.completes = step.completes != 0;
  box.stores = step.sink.space == Space::kOutput;
  for (Box::Value& value : box.values) {
    value.complete |= box.completes;
    if (!reduces(plan_.shape.collective.kind)) value.complete = box.stores;
  }
  std::size_t stored = 0;
  for_each_chunk(plan_.shape, rank_, step, step.sink, [&](const Slice& chunk) {
    if (chunk.space == Space::kScratch) scratch_[{rank_, chunk.chunk}] = box.values.at(stored);
    ++stored;
  });
  for (std::uint16_t port : channel.sends(step)) queue(port).push_back(boxes.size());
  times = std::max(times, box.time + 1);
  done.push_back(boxes.size());
  boxes.push_back(std::move(box));
}

bool Schedule::run() {
  std::vector<std::vector<Cursor>> cursors;
  for (const RankPlan& rank : plan_.ranks) {
    cursors.emplace_back(rank.channels.size());
    done_.emplace_back(rank.channels.size());
  }
  std::uint64_t ran = 1;
  while (ran > 0) {
    ran = 0;
    for (rank_ = 0; rank_ < plan_.ranks.size(); ++rank_) {
      const std::vector<Channel>& channels = plan_.ranks[rank_].channels;
      for (channel_ = 0; channel_ < channels.size(); ++channel_) {
        program_ = &channels[channel_];
        ran += advance(*program_, cursors[rank_][channel_], 1, ~std::uint64_t{0}, *this);
      }
    }
  }
  for (const std::vector<Cursor>& rank : cursors) {
    if (!std::all_of(rank.begin(), rank.end(), [](const Cursor& cursor) { return finished(cursor, 1); })) return false;
  }
  return true;
}

// ---- Drawing: positions and appearance. Lengths are in pixels. ----

constexpr int kMargin = 28;
constexpr int kLabelWidth = 64;
constexpr int kHeaderHeight = 118;
constexpr int kRowHeight = 30;  // height of one row of boxes, with the space between rows
constexpr int kBoxHeight = 22;
constexpr int kRankGap = 10;
constexpr int kLegendBoxWidth = 40;
// font size of the labels if the boxes are wide enough
constexpr int kLabelSize = 12;
// If a label needed a smaller font than this, the boxes are made wider.
constexpr int kSmallestLabelSize = 8;
// free space in a box beside its label, left and right together
constexpr int kLabelGap = 6;
constexpr std::uint32_t kLinesBesideARow = 3;
constexpr int kMinWidth = 840;
constexpr std::string_view kInk = "#1f2933";
constexpr std::string_view kFaintInk = "#7b8794";
constexpr std::string_view kWhite = "#ffffff";

class Drawing {
 public:
  Drawing(const Plan& plan, const Schedule& schedule);
  std::string draw();

 private:
  void choose_widths();
  void place_rows();
  void draw_header();
  void draw_legend(int x, int y);
  void draw_grid();
  void draw_line(const MessageLine& line);
  std::string label_of(const Box& box) const;
  std::string label_of(const Box::Value& value) const;
  void draw_box(const Box& box);
  struct BoxRect {
    int x;
    int y;
    int width;
  };
  void draw_box_at(BoxRect at, const Box& box, const std::string& label);

  // The colour of a box. Each datum (or each rank, if by_rank_) has a hue, and the hues are evenly spaced; with more
  // than 360 of them, some share a hue. If `strong`, those with consecutive numbers also differ in lightness.
  std::string colour(const Box& box, bool strong) const {
    const std::uint32_t chunk = by_rank_ ? box.values.front().contributor : box.values.front().chunk;
    const std::uint32_t hue = chunk % colours_ * 360 / colours_;
    return rgb(hue, strong ? 0.62 : 0.70, strong ? (chunk % 2 == 0 ? 0.50 : 0.42) : 0.88);
  }
  static std::string rgb(std::uint32_t hue, double saturation, double lightness);
  // Estimated width of a label of `letters` letters in a sans-serif font of this size. A digit is 0.56 times as
  // wide as the font size; 0.6 is used.
  static int text_width(std::size_t letters, int size) { return static_cast<int>(letters) * size * 3 / 5; }
  int x_of(std::uint32_t time) const { return kMargin + kLabelWidth + static_cast<int>(time) * pitch_; }
  int y_of(const Box& box) const { return rows_.at({box.rank, box.channel}); }

  const Plan& plan_;
  const Schedule& schedule_;
  int pitch_ = 0;
  int box_width_ = 0;
  int label_size_ = kLabelSize;
  // true: colours and labels show the rank whose data travels, and not the chunk
  bool by_rank_ = false;
  // true: labels also show the rank to which the data travels
  bool to_each_ = false;
  std::uint32_t colours_ = 1;
  int bottom_ = 0;
  int width_ = 0;
  // indexed by rank and channel: the y coordinate of the top of its boxes
  std::map<std::pair<std::uint32_t, std::uint32_t>, int> rows_;
  SvgDrawing svg_;
};

Drawing::Drawing(const Plan& plan, const Schedule& schedule) : plan_(plan), schedule_(schedule) {
  const CollectiveKind kind = plan.shape.collective.kind;
  by_rank_ = !reduces(kind) && row_of(kind).root != RootHas::kTheInput;
  to_each_ = by_rank_ && row_of(kind).input == BlockSet::kAll;
  colours_ = by_rank_ ? plan.shape.collective.ranks : data(plan.shape);
  choose_widths();
  place_rows();
  width_ = std::max(x_of(schedule.times), kMinWidth) + kMargin;
}

// Sets the width of a box, its distance to the next one (pitch_), and the font size of the labels. The more steps
// follow each other, the narrower the boxes are, within limits, but the longest label fits into a box in the smallest
// font.
void Drawing::choose_widths() {
  std::size_t longest = 0;
  for (const Box& box : schedule_.boxes) longest = std::max(longest, letter_count(label_of(box)));
  pitch_ = std::clamp(1500 / static_cast<int>(std::max(schedule_.times, 1u)), 24, 76);
  box_width_ = std::max(pitch_ * 6 / 10, text_width(longest, kSmallestLabelSize) + kLabelGap);
  pitch_ = std::max(pitch_, box_width_ * 10 / 6);
  while (label_size_ > kSmallestLabelSize && text_width(longest, label_size_) + kLabelGap > box_width_) --label_size_;
}

// Gives each channel that has steps a row. Channels of a rank share a row if no two of their steps have the same time.
void Drawing::place_rows() {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> times;
  for (const Box& box : schedule_.boxes) times[{box.rank, box.channel}].push_back(box.time);
  int y = kHeaderHeight;
  for (std::uint32_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    // indexed by row of this rank: the times at which the row has a box already
    std::vector<std::set<std::uint32_t>> taken(1);
    for (std::uint32_t c = 0; c < plan_.ranks[rank].channels.size(); ++c) {
      const std::vector<std::uint32_t>& own = times[{rank, c}];
      if (own.empty()) continue;
      std::size_t row = 0;
      while (std::any_of(own.begin(), own.end(), [&](std::uint32_t time) { return taken[row].contains(time); })) {
        if (++row == taken.size()) taken.emplace_back();
      }
      taken[row].insert(own.begin(), own.end());
      rows_[{rank, c}] = y + static_cast<int>(row) * kRowHeight;
    }
    y += static_cast<int>(taken.size()) * kRowHeight + kRankGap;
  }
  bottom_ = y;
}

// Converts a colour from hue (degrees), saturation and lightness (0 to 1) to #rrggbb, because not every viewer
// supports hsl().
std::string Drawing::rgb(std::uint32_t hue, double saturation, double lightness) {
  const double chroma = (1 - std::max(2 * lightness - 1, 1 - 2 * lightness)) * saturation;
  const auto part = [&](std::uint32_t offset) {
    // Position on the circle of hues, 0 to 6. A primary colour rises in the first sixth of its circle, is full in
    // the next two, falls in the fourth, and is zero in the last two.
    const double at = static_cast<double>((hue + offset) % 360) / 60;
    const double share = std::clamp(std::min(at, 4 - at), 0.0, 1.0);
    return static_cast<int>(std::lround(255 * (lightness - chroma / 2 + chroma * share)));
  };
  return fmt::format("#{:02x}{:02x}{:02x}", part(120), part(0), part(240));
}

void Drawing::draw_header() {
  const PlanShape& shape = plan_.shape;
  const std::string title =
      fmt::format("{}, {}, {} {}{}", to_string(shape.collective.kind), to_string(shape.algorithm),
                  shape.collective.ranks, shape.collective.ranks == 1 ? "rank" : "ranks",
                  has_root(shape.collective.kind) ? fmt::format(", root {}", shape.collective.root) : "");
  svg_.text(kMargin, 40, title, {.size = 20, .colour = kInk, .bold = true, .anchor = "start"});
  const std::string sizes = fmt::format(
      "{} steps and {} messages for each tile of {} {}; {} steps one after the other{}", schedule_.boxes.size(),
      schedule_.lines.size(), shape.chunks, shape.chunks == 1 ? "chunk" : "chunks", schedule_.times,
      reduces(shape.collective.kind) ? fmt::format("; added in {}", to_string(shape.order)) : "");
  svg_.text(kMargin, 62, sizes, {.size = 13, .colour = kFaintInk, .anchor = "start"});
  draw_legend(kMargin, 78);
}

void Drawing::draw_legend(int x, int y) {
  const auto entry = [&](const Box& box, const char* label, const std::string& text, int width) {
    draw_box_at({.x = x, .y = y, .width = kLegendBoxWidth}, box, label);
    svg_.text(x + kLegendBoxWidth + 8, y + 15, text, {.size = 12, .colour = kInk, .anchor = "start"});
    x += kLegendBoxWidth + width;
  };
  const CollectiveKind kind = plan_.shape.collective.kind;
  const char* datum = "chunk";
  if (row_of(kind).output == BlockSet::kOwn) datum = "block";
  if (!reduces(kind)) {
    if (to_each_) {
      entry({.values = {{}}}, "0>1", "passes on the block from rank 0 for rank 1", 300);
    } else if (by_rank_) {
      entry({.values = {{}}}, "0", "passes on the block of rank 0", 220);
    } else {
      entry({.values = {{}}}, "0", fmt::format("passes on {} 0", datum), 150);
    }
    return entry({.values = {{.complete = true}}, .stores = true}, to_each_ ? "0>1" : "0", "stores it", 64);
  }
  entry({.values = {{}}}, "0", fmt::format("sends its input of {} 0", datum), 190);
  entry({.values = {{}}, .adds = true}, "+0", "adds to a received value", 180);
  entry({.values = {{.complete = true}}, .adds = true, .completes = true, .stores = true}, "\u03a30",
        "completes and stores the sum", 210);
  entry({.values = {{.complete = true}}, .stores = true}, "0", "stores", 64);
}

void Drawing::draw_grid() {
  // Maps the y coordinate of a row to its rank. A row that several channels share is in the map once.
  std::map<int, std::uint32_t> lines;
  for (const auto& [place, y] : rows_) lines[y + kBoxHeight / 2] = place.first;
  std::uint32_t last_rank = ~std::uint32_t{0};
  for (const auto& [y, rank] : lines) {
    if (rank != last_rank) {
      svg_.text(kMargin, y + 5, fmt::format("rank {}", rank),
                {.size = 13, .colour = kInk, .bold = true, .anchor = "start"});
      last_rank = rank;
    }
    svg_.line(x_of(0) - 6, y, x_of(schedule_.times) - pitch_ + box_width_ + 6, y, {.colour = "#e4e7eb"});
  }
  const int every = pitch_ < 36 ? 5 : 1;
  for (std::uint32_t time = 0; time < schedule_.times; time += static_cast<std::uint32_t>(every)) {
    const int middle = x_of(time) + box_width_ / 2;
    svg_.text(middle, bottom_ + 8, fmt::format("{}", time), {.size = 10, .colour = kFaintInk});
  }
  svg_.text(kMargin, bottom_ + 8, "time", {.size = 10, .colour = kFaintInk, .anchor = "start"});
}

void Drawing::draw_line(const MessageLine& line) {
  const Box& from = schedule_.boxes[line.from];
  const Box& to = schedule_.boxes[line.to];
  const int x1 = x_of(from.time) + box_width_;
  const int y1 = y_of(from) + kBoxHeight / 2;
  const int x2 = x_of(to.time);
  const int y2 = y_of(to) + kBoxHeight / 2;
  const std::string stroke = colour(from, true);
  std::string path = fmt::format("M{} {}", x1, y1);
  int x = x1;
  int y = y1;
  const auto curve_to = [&](int to_x, int to_y) {
    const int bend = std::max((to_x - x) / 2, 8);
    path += fmt::format(" C{} {} {} {} {} {}", x + bend, y, to_x - bend, to_y, to_x, to_y);
    x = to_x;
    y = to_y;
  };
  // If the receiver's step does not run directly after the sender's, a direct line could cross the boxes in between. So
  // the line runs along the edge of the receiver's row until shortly before the receiver.
  if (to.time > from.time + 1) {
    const int aside = kBoxHeight / 2 + 3 + 2 * static_cast<int>(from.rank % kLinesBesideARow);
    curve_to(x_of(from.time + 1), y1 < y2 ? y2 - aside : y2 + aside);
    x = x_of(to.time - 1) + box_width_;
    path += fmt::format(" H{}", x);
  }
  curve_to(x2, y2);
  svg_.path(path, {.colour = stroke, .width = 1.3, .opacity = from.values.front().complete ? 0.85 : 0.5});
  svg_.circle(x2, y2, 2.2, stroke);
}

std::string Drawing::label_of(const Box::Value& value) const {
  if (to_each_) return fmt::format("{}>{}", value.contributor, value.chunk / plan_.shape.chunks);
  return fmt::format("{}", by_rank_ ? value.contributor : value.chunk);
}

// The label of a box: the label of its value or, if the step has a run, those of the first and of the last value, for
// example "2..3". A sign in front shows that the step adds, or that it completes a sum.
std::string Drawing::label_of(const Box& box) const {
  const char* const sign = by_rank_ ? "" : box.completes ? "\u03a3" : box.adds ? "+" : "";
  const std::string first = label_of(box.values.front());
  const std::string more = box.values.size() > 1 ? ".." + label_of(box.values.back()) : "";
  return fmt::format("{}{}{}", sign, first, more);
}

void Drawing::draw_box(const Box& box) {
  draw_box_at({.x = x_of(box.time), .y = y_of(box), .width = box_width_}, box, label_of(box));
}

void Drawing::draw_box_at(BoxRect at, const Box& box, const std::string& label) {
  const std::string fill = colour(box, box.values.front().complete);
  const std::string line = colour(box, true);
  svg_.box(at.x, at.y, at.width, kBoxHeight,
           {.fill = fill, .line = line, .line_width = box.completes ? 0 : 1.2, .radius = 4});
  // A bar at the bottom of a box shows that its step stores to the output.
  if (box.stores) {
    svg_.box(at.x + 3, at.y + kBoxHeight - 5, at.width - 6, 3, {.fill = box.completes ? kInk : kWhite, .radius = 1});
  }
  const int size = at.width == kLegendBoxWidth ? kLabelSize : label_size_;
  const int baseline = at.y + kBoxHeight / 2 + (box.stores ? 2 : 4);
  const SvgFont font{
      .size = static_cast<double>(size), .colour = box.values.front().complete ? kWhite : kInk, .bold = box.completes};
  const int middle = at.x + at.width / 2;
  svg_.text(middle, baseline, label, font);
}

std::string Drawing::draw() {
  draw_header();
  draw_grid();
  for (const MessageLine& line : schedule_.lines) draw_line(line);
  for (const Box& box : schedule_.boxes) draw_box(box);
  return svg_.document(width_, bottom_ + kMargin);
}

}  // namespace

Result<std::string> to_svg(const Plan& plan) {
  if (plan.ranks.size() > kMaxDrawnRanks) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = fmt::format("a picture of {} ranks would be unreadable; draw at most {}", plan.ranks.size(),
                                        kMaxDrawnRanks)};
  }
  Schedule schedule(plan);
  if (!schedule.run())
    return Error{.code = ErrorCode::kInvalidPlan, .message = "the plan does not end and can not be drawn"};
  return Drawing(plan, schedule).draw();
}

}  // namespace tutti::tool
