// Writes plan files. json_parse.cc reads them.
#include "plan/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/printable.h"
#include "plan/collective.h"
#include "plan/formats/json_words.h"

namespace tutti {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string in_quotes(std::string_view label) {
  std::string text = "\"";
  for (const char c : label) {
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text + '"';
}

std::string lane_text(const Port& port) { return port.lane == 0 ? "" : fmt::format(R"(, "lane": {})", port.lane); }

void write_end(Out& out, const Port& port) { fmt::format_to(out, R"({{"peer": {}{}}})", port.peer, lane_text(port)); }

void write_ends(Out& out, const Channel& channel, std::span<const std::uint16_t> ports) {
  const char* separator = "";
  for (const std::uint16_t port : ports) {
    fmt::format_to(out, "{}", separator);
    write_end(out, channel.ports[port]);
    separator = ", ";
  }
}

// Writes one step as a JSON object on one line. A StepWriter is used for one step only.
class StepWriter {
 public:
  explicit StepWriter(Out& out) : out_(out) {}

  void write(const Channel& channel, const Step& step, std::span<const After> after) {
    if (step.receive_count > 0) write_list("receive", channel, channel.receives(step));
    if (step.source.space != Space::kNone) {
      field("local");
      write_slice(step.source);
      if (step.source_position > 0) fmt::format_to(out_, R"(, "position": {})", step.source_position);
      fmt::format_to(out_, "}}");
    }
    if (step.sink.space != Space::kNone) {
      field("store");
      write_slice(step.sink);
      fmt::format_to(out_, "}}");
    }
    if (step.send_count > 0) write_list("send", channel, channel.sends(step));
    if (step.run != 1) {
      field("run");
      fmt::format_to(out_, "{}", step.run);
    }
    if (step.completes != 0) {
      field("completes");
      fmt::format_to(out_, "true");
    }
    if (!after.empty()) write_after(after);
    fmt::format_to(out_, "{}", first_ ? "{}" : "}");
  }

 private:
  void field(std::string_view name) {
    fmt::format_to(out_, R"({}"{}": )", first_ ? "{" : ", ", name);
    first_ = false;
  }
  void write_slice(const Slice& slice) {
    fmt::format_to(out_, R"({{"space": "{}", "chunk": {})", to_string(slice.space), slice.chunk);
  }
  void write_list(std::string_view name, const Channel& channel, std::span<const std::uint16_t> ports) {
    field(name);
    fmt::format_to(out_, "[");
    write_ends(out_, channel, ports);
    fmt::format_to(out_, "]");
  }
  void write_after(std::span<const After> after) {
    field("after");
    const char* separator = "[";
    for (const After& wait : after) {
      fmt::format_to(out_, R"({}{{"channel": {}, "step": {}{}}})", separator, wait.other_channel, wait.other_step,
                     wait.tiles_before == 0 ? "" : R"(, "tiles_before": 1)");
      separator = ", ";
    }
    fmt::format_to(out_, "]");
  }

  Out& out_;
  bool first_ = true;
};

// True if the channel's ports are numbered in the order in which its steps first use them, and all are used. The
// reader numbers ports in that order if the file does not list them. If the result is false, the file must list
// the ports.
bool ports_follow_use(const Channel& channel) {
  std::size_t next = 0;
  for (const Step& step : channel.steps) {
    for (const auto& ports : {channel.receives(step), channel.sends(step)}) {
      for (const std::uint16_t port : ports) {
        if (port > next) return false;
        next = std::max<std::size_t>(next, port + std::size_t{1});
      }
    }
  }
  return next == channel.ports.size();
}

void write_ports(Out& out, const Channel& channel) {
  fmt::format_to(out, "\"ports\": [");
  const char* separator = "";
  for (const Port& port : channel.ports) {
    fmt::format_to(out, R"({}{{"direction": "{}", "peer": {}{}}})", separator, direction_word(port.direction),
                   port.peer, lane_text(port));
    separator = ", ";
  }
  fmt::format_to(out, "],\n       ");
}

void write_channel(Out& out, const Channel& channel) {
  fmt::format_to(out, "\n      {{");
  if (!ports_follow_use(channel)) write_ports(out, channel);
  fmt::format_to(out, "\"steps\": [");
  std::span<const After> waits = channel.after;
  for (std::size_t s = 0; s < channel.steps.size(); ++s) {
    std::size_t own = 0;
    while (own < waits.size() && waits[own].step == s) ++own;
    fmt::format_to(out, "{}\n        ", s == 0 ? "" : ",");
    StepWriter(out).write(channel, channel.steps[s], waits.first(own));
    waits = waits.subspan(own);
  }
  fmt::format_to(out, "]}}");
}

void write_shape(Out& out, const PlanShape& shape) {
  fmt::format_to(out, "  \"collective\": \"{}\",\n", to_string(shape.collective.kind));
  if (shape.algorithm != Algorithm::kUser) {
    fmt::format_to(out, "  \"algorithm\": \"{}\",\n", to_string(shape.algorithm));
  }
  if (has_root(shape.collective.kind)) fmt::format_to(out, "  \"root\": {},\n", shape.collective.root);
  if (!shape.collective.nodes.empty()) {
    fmt::format_to(out, "  \"nodes\": [{}],\n", fmt::join(shape.collective.nodes, ", "));
  }
  fmt::format_to(out, "  \"chunks\": {},\n  \"scratch_chunks\": {},\n  \"slots\": {},\n  \"lanes\": {},\n",
                 shape.chunks, shape.scratch_chunks, shape.slots, shape.lanes);
  fmt::format_to(out, "  \"windows_in_place\": {},\n  \"order\": \"{}\",\n", shape.windows_in_place,
                 order_word(shape.order));
}

}  // namespace

std::string_view direction_word(Direction direction) { return direction == Direction::kSend ? "send" : "receive"; }

std::string_view order_word(Order order) {
  switch (order) {
    case Order::kAny: return "any";
    case Order::kByRank: return "by_rank";
    case Order::kCyclic: return "cyclic";
  }
  return "invalid";
}

bool is_label(std::string_view text, std::size_t most_bytes) {
  return text.size() <= most_bytes && printable(text) == text;
}

std::string to_json(const PlanFile& file) {
  std::string text = fmt::format("{{\n  \"tutti_plan\": {},\n", kPlanFormat);
  Out out(text);
  if (!file.name.empty()) fmt::format_to(out, "  \"name\": {},\n", in_quotes(file.name));
  if (!file.comment.empty()) fmt::format_to(out, "  \"comment\": {},\n", in_quotes(file.comment));
  write_shape(out, file.plan.shape);
  text += "  \"ranks\": [";
  for (std::size_t rank = 0; rank < file.plan.ranks.size(); ++rank) {
    text += rank == 0 ? "\n    {\"channels\": [" : ",\n    {\"channels\": [";
    const std::vector<Channel>& channels = file.plan.ranks[rank].channels;
    for (std::size_t c = 0; c < channels.size(); ++c) {
      if (c > 0) text += ",";
      write_channel(out, channels[c]);
    }
    text += "]}";
  }
  return text + "]\n}\n";
}

}  // namespace tutti
