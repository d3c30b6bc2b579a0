// The table of fields, from the innermost objects of the format to the outermost one, and the functions that store
// the values of the fields.
#include "plan/formats/json_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/collective_table.h"
#include "plan/formats/json_words.h"
#include "tutti/plan.h"

namespace tutti::json_fields {
namespace {

constexpr std::uint64_t kMost32 = std::numeric_limits<std::uint32_t>::max();
// Largest number of ports of a channel: one send port and one receive port for every other rank and every lane.
constexpr std::uint64_t kMostPorts = std::uint64_t{2} * (PlanLimits::kRanks - 1) * PlanLimits::kLanes;

std::string too_many(std::string_view what, std::uint64_t most) {
  return fmt::format("the plan is too large: more than {} {}", most, what);
}

std::string set_space(Slice& slice, const std::string& word, bool may_be_input) {
  for (const Space space : {Space::kInput, Space::kOutput, Space::kScratch}) {
    if (word != to_string(space)) continue;
    if (space == Space::kInput && !may_be_input) return "input is only read: store to \"out\" or \"scratch\"";
    slice.space = space;
    return "";
  }
  return may_be_input ? R"(should be "in", "out" or "scratch")" : R"(should be "out" or "scratch")";
}

std::string set_label(std::string& label, const std::string& word, std::size_t most) {
  if (!is_label(word, most)) {
    return fmt::format("should be at most {} bytes without control or direction characters", most);
  }
  label = word;
  return "";
}

std::string set_collective(ReaderState& reading, const std::string& word) {
  const auto kind = parse_collective(word);
  if (!kind || !has_plan(*kind)) {
    std::string known;
    for (const CollectiveKind each : all_collectives()) {
      known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", to_string(each));
    }
    return "should be one of " + known;
  }
  reading.file.plan.shape.collective.kind = *kind;
  return "";
}

std::string set_algorithm(ReaderState& reading, const std::string& word) {
  const auto algorithm = parse_algorithm(word);
  if (!algorithm || *algorithm == Algorithm::kAuto)
    return "is not an algorithm that a plan may name; leave the field out";
  reading.file.plan.shape.algorithm = *algorithm;
  return "";
}

std::string set_order(ReaderState& reading, const std::string& word) {
  for (const Order order : {Order::kAny, Order::kByRank, Order::kCyclic}) {
    if (word != order_word(order)) continue;
    reading.file.plan.shape.order = order;
    return "";
  }
  return R"(should be "any", "by_rank" or "cyclic")";
}

std::string set_direction(ReaderState& reading, const std::string& word) {
  for (const Direction direction : {Direction::kReceive, Direction::kSend}) {
    if (word != direction_word(direction)) continue;
    reading.end.direction = direction;
    return "";
  }
  return R"(should be "send" or "receive")";
}

std::string begin_end(ReaderState& reading) {
  reading.end = {};
  return ++reading.messages > 2 * std::uint64_t{PlanLimits::kMessages}
             ? too_many("sends and receives", 2 * std::uint64_t{PlanLimits::kMessages})
             : "";
}

std::string end_port(ReaderState& reading) {
  if (reading.channel.steps() > 0) return "the ports must be before \"steps\"";
  const Port& end = reading.end;
  const bool sends = end.direction == Direction::kSend;
  const std::uint16_t port =
      sends ? reading.channel.send_to(end.peer, end.lane) : reading.channel.receive_from(end.peer, end.lane);
  return port == reading.ports++ ? "" : fmt::format("is the same as port {}", port);
}

std::string begin_step(ReaderState& reading) {
  reading.source = reading.sink = {};
  reading.position = 0;
  reading.receives.clear();
  reading.sends.clear();
  reading.after.clear();
  reading.completes = false;
  reading.run = 1;
  return ++reading.steps > PlanLimits::kSteps ? too_many("steps", PlanLimits::kSteps) : "";
}

std::string end_step(ReaderState& reading) {
  if (reading.position > reading.receives.size()) {
    return fmt::format("local.position is {}, but the step receives {}", reading.position, reading.receives.size());
  }
  ChannelBuilder& channel = reading.channel;
  auto step = channel.step();
  for (std::size_t i = 0; i <= reading.receives.size(); ++i) {
    if (i == reading.position && reading.source.space != Space::kNone)
      step.local(reading.source.space, reading.source.chunk);
    if (i == reading.receives.size()) break;
    step.receive(channel.receive_from(reading.receives[i].peer, reading.receives[i].lane));
  }
  if (reading.sink.space != Space::kNone) step.store(reading.sink.space, reading.sink.chunk);
  for (const Port& end : reading.sends) step.send(channel.send_to(end.peer, end.lane));
  if (reading.completes) step.completes();
  step.run(reading.run);
  PlanShape& shape = reading.file.plan.shape;
  shape.longest_run = std::max(shape.longest_run, reading.run);
  for (const After& after : reading.after) channel.after(after.other_channel, after.other_step, after.tiles_before);
  return "";
}

using C = Content;

constexpr Field kEndFields[] = {
    {.name = "peer",
     .content = C::kNumber,
     .required = true,
     .most = PlanLimits::kRanks - 1,
     .number = [](ReaderState& r, std::uint64_t n) { r.end.peer = static_cast<std::uint32_t>(n); }},
    {.name = "lane",
     .content = C::kNumber,
     .most = PlanLimits::kLanes - 1,
     .number = [](ReaderState& r, std::uint64_t n) { r.end.lane = static_cast<std::uint16_t>(n); }},
};
constexpr Field kPortFields[] = {
    kEndFields[0],
    kEndFields[1],
    {.name = "direction", .content = C::kString, .required = true, .word = set_direction},
};
constexpr Field kLocalFields[] = {
    {.name = "space",
     .content = C::kString,
     .required = true,
     .word = [](ReaderState& r, const std::string& word) { return set_space(r.source, word, true); }},
    {.name = "chunk",
     .content = C::kNumber,
     .required = true,
     .most = kMost32,
     .number = [](ReaderState& r, std::uint64_t n) { r.source.chunk = static_cast<std::uint32_t>(n); }},
    {.name = "position",
     .content = C::kNumber,
     .most = PlanLimits::kOperands,
     .number = [](ReaderState& r, std::uint64_t n) { r.position = static_cast<std::uint32_t>(n); }},
};
constexpr Field kStoreFields[] = {
    {.name = "space",
     .content = C::kString,
     .required = true,
     .word = [](ReaderState& r, const std::string& word) { return set_space(r.sink, word, false); }},
    {.name = "chunk",
     .content = C::kNumber,
     .required = true,
     .most = kMost32,
     .number = [](ReaderState& r, std::uint64_t n) { r.sink.chunk = static_cast<std::uint32_t>(n); }},
};
constexpr Field kAfterFields[] = {
    {.name = "channel",
     .content = C::kNumber,
     .required = true,
     .most = PlanLimits::kChannels - 1,
     .number = [](ReaderState& r, std::uint64_t n) { r.wait.other_channel = static_cast<std::uint16_t>(n); }},
    {.name = "step",
     .content = C::kNumber,
     .required = true,
     .most = PlanLimits::kSteps - 1,
     .number = [](ReaderState& r, std::uint64_t n) { r.wait.other_step = static_cast<std::uint32_t>(n); }},
    {.name = "tiles_before",
     .content = C::kNumber,
     .most = 1,
     .number = [](ReaderState& r, std::uint64_t n) { r.wait.tiles_before = static_cast<std::uint16_t>(n); }},
};

constexpr Field kReceive = {.begin = begin_end,
                            .end = [](ReaderState& r) { return r.receives.push_back(r.end), std::string(); },
                            .inside = kEndFields};
constexpr Field kSend = {.begin = begin_end,
                         .end = [](ReaderState& r) { return r.sends.push_back(r.end), std::string(); },
                         .inside = kEndFields};
constexpr Field kAfter = {.begin =
                              [](ReaderState& r) {
                                r.wait = {};
                                return ++r.waits > PlanLimits::kMessages ? too_many("waits", PlanLimits::kMessages)
                                                                         : std::string();
                              },
                          .end = [](ReaderState& r) { return r.after.push_back(r.wait), std::string(); },
                          .inside = kAfterFields};
constexpr Field kPort = {
    .begin = [](ReaderState& r) { return r.end = {}, std::string(); }, .end = end_port, .inside = kPortFields};

constexpr Field kStepFields[] = {
    {.name = "receive", .content = C::kArray, .most = PlanLimits::kOperands, .inside = {&kReceive, 1}},
    {.name = "local", .content = C::kObject, .inside = kLocalFields},
    {.name = "store", .content = C::kObject, .inside = kStoreFields},
    {.name = "send", .content = C::kArray, .most = PlanLimits::kOperands, .inside = {&kSend, 1}},
    {.name = "run",
     .content = C::kNumber,
     .least = 1,
     .most = kMost32,
     .number = [](ReaderState& r, std::uint64_t n) { r.run = static_cast<std::uint32_t>(n); }},
    {.name = "completes",
     .content = C::kBoolean,
     .number = [](ReaderState& r, std::uint64_t truth) { r.completes = truth != 0; }},
    {.name = "after", .content = C::kArray, .most = PlanLimits::kMessages, .inside = {&kAfter, 1}},
};
constexpr Field kStep = {.begin = begin_step, .end = end_step, .inside = kStepFields};

constexpr Field kChannelFields[] = {
    {.name = "ports", .content = C::kArray, .most = kMostPorts, .inside = {&kPort, 1}},
    {.name = "steps", .content = C::kArray, .required = true, .most = PlanLimits::kSteps, .inside = {&kStep, 1}},
};
constexpr Field kChannel = {.begin =
                                [](ReaderState& r) {
                                  r.channel = {};
                                  r.ports = 0;
                                  return std::string();
                                },
                            .end =
                                [](ReaderState& r) {
                                  r.file.plan.ranks.back().channels.push_back(std::move(r.channel).build());
                                  return std::string();
                                },
                            .inside = kChannelFields};
constexpr Field kRankFields[] = {
    {.name = "channels",
     .content = C::kArray,
     .required = true,
     .most = PlanLimits::kChannels,
     .inside = {&kChannel, 1}},
};
constexpr Field kRank = {.begin = [](ReaderState& r) { return r.file.plan.ranks.emplace_back(), std::string(); },
                         .inside = kRankFields};
constexpr Field kNode = {
    .content = C::kNumber, .most = PlanLimits::kRanks - 1, .number = [](ReaderState& r, std::uint64_t n) {
      r.file.plan.shape.collective.nodes.push_back(static_cast<std::uint32_t>(n));
    }};

constexpr Field kTopFields[] = {
    {.name = "tutti_plan",
     .content = C::kNumber,
     .required = true,
     .most = kMost32,
     .number = [](ReaderState& r, std::uint64_t n) { r.format = n; }},
    {.name = "name",
     .content = C::kString,
     .word = [](ReaderState& r, const std::string& w) { return set_label(r.file.name, w, PlanLimits::kNameBytes); }},
    {.name = "comment",
     .content = C::kString,
     .word = [](ReaderState& r,
                const std::string& w) { return set_label(r.file.comment, w, PlanLimits::kCommentBytes); }},
    {.name = "collective", .content = C::kString, .required = true, .word = set_collective},
    {.name = "algorithm", .content = C::kString, .word = set_algorithm},
    {.name = "root",
     .content = C::kNumber,
     .most = PlanLimits::kRanks - 1,
     .number = [](ReaderState& r,
                  std::uint64_t n) { r.file.plan.shape.collective.root = static_cast<std::uint32_t>(n); }},
    {.name = "nodes", .content = C::kArray, .most = PlanLimits::kRanks, .inside = {&kNode, 1}},
    {.name = "chunks",
     .content = C::kNumber,
     .least = 1,
     .most = kMost32,
     .number = [](ReaderState& r, std::uint64_t n) { r.file.plan.shape.chunks = static_cast<std::uint32_t>(n); }},
    {.name = "scratch_chunks",
     .content = C::kNumber,
     .most = kMost32,
     .number = [](ReaderState& r,
                  std::uint64_t n) { r.file.plan.shape.scratch_chunks = static_cast<std::uint32_t>(n); }},
    {.name = "slots",
     .content = C::kNumber,
     .least = 1,
     .most = PlanLimits::kSlots,
     .number = [](ReaderState& r, std::uint64_t n) { r.file.plan.shape.slots = static_cast<std::uint16_t>(n); }},
    {.name = "lanes",
     .content = C::kNumber,
     .least = 1,
     .most = PlanLimits::kLanes,
     .number = [](ReaderState& r, std::uint64_t n) { r.file.plan.shape.lanes = static_cast<std::uint16_t>(n); }},
    {.name = "windows_in_place",
     .content = C::kBoolean,
     .number =
         [](ReaderState& r, std::uint64_t truth) {
           r.file.plan.shape.windows_in_place = truth != 0;
           r.file.says_windows_in_place = true;
         }},
    {.name = "order", .content = C::kString, .word = set_order},
    {.name = "ranks", .content = C::kArray, .required = true, .most = PlanLimits::kRanks, .inside = {&kRank, 1}},
};
constexpr Field kTop = {.name = "plan", .inside = kTopFields};

}  // namespace

const Field& top() { return kTop; }

}  // namespace tutti::json_fields
