// Writes Parameters as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/parameters.h"

namespace tutti {
namespace {

// Writes JSON as text, value by value. It does not build a tree of the JSON library, because the destructor of such
// a tree allocates memory, and if that fails, the process ends. The destructor of a single value does not allocate.
class JsonWriter {
 public:
  template <class Value>
  void add(std::string_view name, const Value& value) {
    begin_value(name);
    text_ += nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }
  // Begins an object or array. `name` is its key; empty for an element of an array and for the outermost object, which
  // have no key.
  void open(std::string_view name, char bracket) {
    begin_value(name);
    text_ += bracket;
    ++depth_;
    empty_ = true;
  }
  void close(char bracket) {
    --depth_;
    begin_line();
    text_ += bracket;
    empty_ = false;
  }
  std::string take() { return std::move(text_) + "\n"; }

 private:
  void begin_line() {
    if (text_.empty()) return;
    text_ += '\n';
    text_.append(2 * depth_, ' ');
  }
  void begin_value(std::string_view name) {
    if (!empty_) text_ += ',';
    begin_line();
    empty_ = false;
    if (!name.empty()) text_ += fmt::format("\"{}\": ", name);
  }

  std::string text_;
  std::size_t depth_ = 0;
  // true if the innermost open object or array has no elements yet, so that no comma is needed
  bool empty_ = true;
};

void add_cost(JsonWriter& json, std::string_view protocol, const MessageCost& cost) {
  json.open(protocol, '{');
  json.add("post_us", cost.post_us);
  json.add("latency_us", cost.latency_us);
  json.add("gap_us", cost.gap_us);
  json.add("gbytes_per_s", cost.gbytes_per_s);
  if (cost.channel_gbytes_per_s > 0) json.add("channel_gbytes_per_s", cost.channel_gbytes_per_s);
  json.close('}');
}

bool is_known(const MessageCost& cost) { return cost.gbytes_per_s > 0; }

// Writes the costs by level and protocol. Leaves out the protocols that are not available (bandwidth 0), and levels
// and `costs` if nothing is left of them.
void add_costs(JsonWriter& json, const Parameters& p) {
  const auto any = [](const auto& level) { return std::any_of(level.begin(), level.end(), is_known); };
  if (std::none_of(p.costs.begin(), p.costs.end(), any)) return;
  json.open("costs", '{');
  for (std::size_t l = 0; l < kLevels; ++l) {
    if (!any(p.costs[l])) continue;
    json.open(to_string(static_cast<Level>(l)), '{');
    for (std::size_t k = 0; k < kProtocols; ++k) {
      if (is_known(p.costs[l][k])) add_cost(json, to_string(static_cast<Protocol>(k)), p.costs[l][k]);
    }
    json.close('}');
  }
  json.close('}');
}

void add_choices(JsonWriter& json, const std::vector<RankChoices>& choices) {
  if (choices.empty()) return;
  json.open("choices", '[');
  for (const RankChoices& one : choices) {
    json.open("", '{');
    json.add("ranks", one.ranks);
    json.add("cores", one.cores);
    json.add("one_shot_bytes", one.choices.one_shot_bytes);
    json.add("copy_by_calls_bytes", one.choices.copy_by_calls_bytes);
    json.add("all_reduce_by_calls_bytes", one.choices.all_reduce_by_calls_bytes);
    json.close('}');
  }
  json.close(']');
}

void add_measurements(JsonWriter& json, const std::vector<Measurement>& measured) {
  if (measured.empty()) return;
  json.open("measured", '[');
  for (const Measurement& one : measured) {
    json.open("", '{');
    json.add("what", one.what);
    json.add("bytes", one.bytes);
    json.add("median_us", one.median_us);
    json.add("p95_us", one.p95_us);
    json.close('}');
  }
  json.close(']');
}

}  // namespace

std::string to_json(const Parameters& p) {
  JsonWriter json;
  json.open("", '{');
  json.add("tutti_parameters", static_cast<int>(kParametersFormat));
  if (!p.name.empty()) json.add("name", p.name);
  if (!p.source.empty()) json.add("source", p.source);
  if (!p.hardware.empty()) json.add("hardware", p.hardware);
  add_costs(json, p);
  json.add("launch_us", p.launch_us);
  json.add("step_us", p.step_us);
  json.add("reduce_gbytes_per_s", p.reduce_gbytes_per_s);
  json.add("copy_gbytes_per_s", p.copy_gbytes_per_s);
  json.add("attach_us", p.attach_us);
  json.add("attach_gbytes_per_s", p.attach_gbytes_per_s);
  json.add("switch_gbytes_per_s", p.switch_gbytes_per_s);
  json.add("switch_latency_us", p.switch_latency_us);
  json.add("cores", p.cores);
  json.add("handover_us", p.handover_us);
  json.add("slot_bytes", p.slot_bytes);
  json.add("slots", p.slots);
  json.add("channels", p.channels);
  add_choices(json, p.choices);
  add_measurements(json, p.measured);
  json.close('}');
  return json.take();
}

}  // namespace tutti
