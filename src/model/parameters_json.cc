// Reads Parameters from JSON. A SAX parser calls Reader for each part of the text, and Reader looks up the path of the
// part in a table of all fields. So nothing that the table does not contain is ever stored, and each error can report
// its position or its path.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/paths.h"
#include "model/parameters.h"
#include "plan/formats/json.h"

namespace tutti {
namespace {

// limit on the length of a text, such as "name"
constexpr std::size_t kMostTextBytes = 512;
// limit on the bytes of the file that an error message repeats
constexpr std::size_t kShownBytes = 24;
// largest time; 1000 s
constexpr double kMostUs = 1e9;
// 1 KB per second. A smaller bandwidth, except 0, is an error, because the predicted times could overflow.
constexpr double kLeastGbytesPerS = 1e-6;
constexpr double kMostGbytesPerS = 1e6;

Error invalid(std::string message) { return {ErrorCode::kInvalidArgument, ErrorScope::kCall, -1, std::move(message)}; }

// Describes the value at a path of the JSON, such as "costs.nic.simple.post_us": its type and range, and the function
// that stores it. The elements of an array, for example of "measured", have a path with brackets: "measured[]".
struct Field {
  enum class Content : std::uint8_t { kNumber, kWhole, kText, kObject, kArray };
  Content content = Content::kObject;
  // kNumber and kWhole: smallest value
  double least = 0;
  // kNumber and kWhole: largest value; kArray: largest number of elements
  double most = 0;
  // true: 0 is allowed, too, even if `least` is greater
  bool or_zero = false;
  std::function<void(double)> number{};
  std::function<void(const std::string&)> text{};
  // kArray: adds an element, whose fields are then stored
  std::function<void()> append{};
};

// Indexed by path; "" is the outermost object.
using Fields = std::map<std::string, Field, std::less<>>;

void add_number(Fields& fields, const std::string& path, double& target, double most) {
  fields[path] = {.content = Field::Content::kNumber, .most = most, .number = [&target](double x) { target = x; }};
}

// Adds the field of a bandwidth, in GB/s. 0 is allowed; its meaning depends on the field (model/parameters.h).
void add_bandwidth(Fields& fields, const std::string& path, double& target) {
  fields[path] = {.content = Field::Content::kNumber,
                  .least = kLeastGbytesPerS,
                  .most = kMostGbytesPerS,
                  .or_zero = true,
                  .number = [&target](double x) { target = x; }};
}

template <class Whole>
void add_whole(Fields& fields, const std::string& path, Whole& target, double least, double most) {
  fields[path] = {.content = Field::Content::kWhole, .least = least, .most = most, .number = [&target](double x) {
                    target = static_cast<Whole>(x);
                  }};
}

void add_text(Fields& fields, const std::string& path, std::string& target) {
  fields[path] = {.content = Field::Content::kText, .text = [&target](const std::string& x) { target = x; }};
}

void add_costs(Fields& fields, Parameters& p) {
  fields["costs"] = {};
  for (std::size_t l = 0; l < kLevels; ++l) {
    const std::string level = fmt::format("costs.{}", to_string(static_cast<Level>(l)));
    fields[level] = {};
    for (std::size_t k = 0; k < kProtocols; ++k) {
      const std::string path = fmt::format("{}.{}", level, to_string(static_cast<Protocol>(k)));
      MessageCost& cost = p.costs[l][k];
      fields[path] = {};
      add_number(fields, path + ".post_us", cost.post_us, kMostUs);
      add_number(fields, path + ".latency_us", cost.latency_us, kMostUs);
      add_number(fields, path + ".gap_us", cost.gap_us, kMostUs);
      add_bandwidth(fields, path + ".gbytes_per_s", cost.gbytes_per_s);
      add_bandwidth(fields, path + ".channel_gbytes_per_s", cost.channel_gbytes_per_s);
    }
  }
}

// The value of a size that the text does not contain.
constexpr std::uint64_t kMissing = UINT64_MAX;

void add_choices(Fields& fields, std::vector<RankChoices>& choices) {
  fields["choices"] = {.content = Field::Content::kArray, .most = kMostRankChoices, .append = [&choices] {
                         choices.push_back({.choices = {kMissing, kMissing, kMissing}});
                       }};
  fields["choices[]"] = {};
  const auto add = [&](const std::string& name, auto member, double least, double most) {
    fields["choices[]." + name] = {
        .content = Field::Content::kWhole, .least = least, .most = most, .number = [&choices, member](double x) {
          member(choices.back(), x);
        }};
  };
  const auto size_of = [](std::uint64_t MachineChoices::*size) {
    return [size](RankChoices& one, double x) { one.choices.*size = static_cast<std::uint64_t>(x); };
  };
  const auto number = [](std::uint32_t RankChoices::*member) {
    return [member](RankChoices& one, double x) { one.*member = static_cast<std::uint32_t>(x); };
  };
  add("ranks", number(&RankChoices::ranks), 2, 65535);
  add("cores", number(&RankChoices::cores), 1, 1 << 20);
  add("one_shot_bytes", size_of(&MachineChoices::one_shot_bytes), 0, 0x1p50);
  add("copy_by_calls_bytes", size_of(&MachineChoices::copy_by_calls_bytes), 0, 0x1p50);
  add("all_reduce_by_calls_bytes", size_of(&MachineChoices::all_reduce_by_calls_bytes), 0, 0x1p50);
}

// All fields of the format. Their functions store into `p` and `format`, which must outlive them. The limits of
// slot_bytes, slots and channels are those of TUTTI_SLOT_BYTES, of TUTTI_SLOTS and of the number of thread blocks of a
// device, with some margin.
Fields all_fields(Parameters& p, std::uint32_t& format) {
  Fields fields;
  fields[""] = {};
  add_whole(fields, "tutti_parameters", format, kParametersFormat, kParametersFormat);
  add_text(fields, "name", p.name);
  add_text(fields, "source", p.source);
  add_text(fields, "hardware", p.hardware);
  add_costs(fields, p);
  add_number(fields, "launch_us", p.launch_us, kMostUs);
  add_number(fields, "step_us", p.step_us, kMostUs);
  add_bandwidth(fields, "reduce_gbytes_per_s", p.reduce_gbytes_per_s);
  add_bandwidth(fields, "copy_gbytes_per_s", p.copy_gbytes_per_s);
  add_number(fields, "attach_us", p.attach_us, kMostUs);
  add_bandwidth(fields, "attach_gbytes_per_s", p.attach_gbytes_per_s);
  add_bandwidth(fields, "switch_gbytes_per_s", p.switch_gbytes_per_s);
  add_number(fields, "switch_latency_us", p.switch_latency_us, kMostUs);
  add_whole(fields, "cores", p.cores, 0, 1 << 20);
  add_number(fields, "handover_us", p.handover_us, kMostUs);
  add_whole(fields, "slot_bytes", p.slot_bytes, 4096, 1 << 30);
  add_whole(fields, "slots", p.slots, 1, 1024);
  add_whole(fields, "channels", p.channels, 1, 1024);
  add_choices(fields, p.choices);
  auto& measured = p.measured;
  fields["measured"] = {
      .content = Field::Content::kArray, .most = kMostMeasurements, .append = [&measured] { measured.emplace_back(); }};
  fields["measured[]"] = {};
  fields["measured[].what"] = {.content = Field::Content::kText,
                               .text = [&measured](const std::string& x) { measured.back().what = x; }};
  fields["measured[].bytes"] = {.content = Field::Content::kWhole, .most = 0x1p50, .number = [&measured](double x) {
                                  measured.back().bytes = static_cast<std::uint64_t>(x);
                                }};
  fields["measured[].median_us"] = {.content = Field::Content::kNumber,
                                    .most = kMostUs,
                                    .number = [&measured](double x) { measured.back().median_us = x; }};
  fields["measured[].p95_us"] = {.content = Field::Content::kNumber, .most = kMostUs, .number = [&measured](double x) {
                                   measured.back().p95_us = x;
                                 }};
  return fields;
}

std::string sanitized(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kShownBytes)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kShownBytes ? result + "..." : result;
}

// The parser calls the public functions, one for each part of the JSON. A function returns false after an error,
// which ends the parsing.
class Reader {
 public:
  Reader(std::string_view text, Parameters& p) : text_(text), fields_(all_fields(p, format_)) {}

  std::optional<Error> take_error() { return std::move(error_); }

  bool null() { return fail("may not be null"); }
  bool boolean(bool) { return fail("may not be true or false"); }
  bool binary(std::vector<std::uint8_t>&) { return fail("may not be binary data"); }
  bool number_float(double x, const std::string&) { return number(x); }
  bool number_integer(std::int64_t x) { return number(static_cast<double>(x)); }
  bool number_unsigned(std::uint64_t x) { return number(static_cast<double>(x)); }
  bool string(const std::string& text);
  bool start_object(std::size_t) { return start(Field::Content::kObject); }
  bool start_array(std::size_t) { return start(Field::Content::kArray); }
  bool end_array() { return open_.pop_back(), true; }
  bool end_object();
  bool key(const std::string& name);
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&);

 private:
  // An object or array that has not been read to its end yet.
  struct OpenValue {
    // its path in the table, for example "measured[]"; "" for the outermost object
    std::string pattern{};
    // its path for error messages, for example "measured[3]"
    std::string path{};
    // true: an array; false: an object
    bool array = false;
    // object: the key of the value that follows
    std::string key{};
    // object: the keys so far, because a key may occur only once
    std::set<std::string, std::less<>> seen{};
    // array: number of elements that have begun
    std::size_t elements = 0;
  };

  static std::string under(const std::string& path, const std::string& key) {
    return path.empty() ? key : path + "." + key;
  }
  std::string pattern() const;
  std::string path() const;
  const Field* begin_value();
  bool start(Field::Content content);
  bool number(double x);
  bool fail(const std::string& what) {
    const std::string where = path();
    error_ = invalid(where.empty() ? "the file " + what : fmt::format("{}: {}", where, what));
    return false;
  }

  std::string_view text_;
  std::uint32_t format_ = 0;
  Fields fields_;
  std::vector<OpenValue> open_;
  std::optional<Error> error_;
};

std::string Reader::pattern() const {
  if (open_.empty()) return "";
  const OpenValue& place = open_.back();
  return place.array ? place.pattern + "[]" : under(place.pattern, place.key);
}

std::string Reader::path() const {
  if (open_.empty()) return "";
  const OpenValue& place = open_.back();
  if (place.array) return fmt::format("{}[{}]", place.path, place.elements == 0 ? 0 : place.elements - 1);
  return place.key.empty() ? place.path : under(place.path, place.key);
}

// Called when a value begins. Returns its entry in the table, which always exists: key() has checked it, and the
// table has an entry for the elements of each array.
const Field* Reader::begin_value() {
  if (!open_.empty() && open_.back().array) ++open_.back().elements;
  return &fields_.find(pattern())->second;
}

bool Reader::start(Field::Content content) {
  const Field* field = begin_value();
  if (field->content != content)
    return fail(content == Field::Content::kObject ? "may not be an object" : "may not be an array");
  OpenValue place{.pattern = pattern(), .path = path(), .array = content == Field::Content::kArray};
  if (!open_.empty() && open_.back().array) {
    const Field& array = fields_.at(open_.back().pattern);
    if (static_cast<double>(open_.back().elements) > array.most)
      return fail(fmt::format("more than {} elements", array.most));
    array.append();
  }
  open_.push_back(std::move(place));
  return true;
}

bool Reader::number(double x) {
  const Field* field = begin_value();
  const bool whole = field->content == Field::Content::kWhole;
  if (!whole && field->content != Field::Content::kNumber) return fail("may not be a number");
  if (whole && x != std::floor(x)) return fail(fmt::format("{} is not whole", x));
  if ((x >= field->least && x <= field->most) || (field->or_zero && x == 0)) return field->number(x), true;
  if (pattern() == "tutti_parameters")
    return fail(fmt::format("this is version {} of the format; known is {}", x, kParametersFormat));
  return fail(fmt::format("{} is outside {}..{}{}", x, field->least, field->most, field->or_zero ? " and not 0" : ""));
}

bool Reader::string(const std::string& text) {
  const Field* field = begin_value();
  if (field->content != Field::Content::kText) return fail("may not be a string");
  if (!is_label(text, kMostTextBytes)) {
    return fail(fmt::format("must be UTF-8 without control or direction characters, {} bytes at most", kMostTextBytes));
  }
  field->text(text);
  return true;
}

bool Reader::key(const std::string& name) {
  OpenValue& place = open_.back();
  place.key.clear();
  const std::string wanted = under(place.pattern, name);
  if (!fields_.contains(wanted) || name.empty() || name.find_first_of(".[") != std::string::npos) {
    std::vector<std::string_view> known;
    const std::string before = place.pattern.empty() ? "" : place.pattern + ".";
    for (const auto& [path, field] : fields_) {
      const std::string_view rest = std::string_view(path).substr(std::min(before.size(), path.size()));
      const bool here = path.starts_with(before) && rest.find_first_of(".[") == std::string_view::npos;
      if (here && !rest.empty()) known.push_back(rest);
    }
    const std::string_view nearest = nearest_name(std::string_view(name).substr(0, kShownBytes), known);
    return fail(fmt::format("has an unknown field \"{}\"; {}", sanitized(name),
                            nearest.empty() ? fmt::format("known are {}", fmt::join(known, ", "))
                                            : fmt::format("did you mean \"{}\"?", nearest)));
  }
  place.key = name;
  return place.seen.insert(name).second || fail("stands here a second time");
}

bool Reader::end_object() {
  OpenValue& place = open_.back();
  place.key.clear();
  if (open_.size() == 1 && format_ == 0) return fail("has no \"tutti_parameters\": 1");
  open_.pop_back();
  return true;
}

bool Reader::parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) {
  if (error_) return false;
  const std::string_view before = text_.substr(0, position == 0 ? 0 : position - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  // The JSON library reports error 406 for a number that does not fit into a double.
  const bool overflow = error.id == 406;
  const std::string place = sanitized(text_.substr(before.size() < 12 ? 0 : before.size() - 12, kShownBytes));
  error_ = invalid(fmt::format("line {}, column {}: {}: {}", line, column,
                               overflow ? "a number is too large" : "this is not JSON",
                               place.empty() ? "the text ends too early" : fmt::format("at \"{}\"", place)));
  return false;
}

// Checks after parsing: those that involve more than one field, and the digits of `hardware`.
std::optional<Error> check(const Parameters& p) {
  for (std::size_t l = 0; l < kLevels; ++l) {
    for (std::size_t k = 0; k < kProtocols; ++k) {
      const MessageCost& cost = p.costs[l][k];
      if (cost.gbytes_per_s > 0 || cost == MessageCost{}) continue;
      return invalid(
          fmt::format("costs.{}.{}: has no gbytes_per_s above 0: without it nothing can be sent; leave the "
                      "protocol out where there is none",
                      to_string(static_cast<Level>(l)), to_string(static_cast<Protocol>(k))));
    }
  }
  const bool hexadecimal = p.hardware.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (!hexadecimal || p.hardware.size() > 64) return invalid("hardware: must be at most 64 hexadecimal digits");
  for (const RankChoices& one : p.choices) {
    const MachineChoices& sizes = one.choices;
    if (one.ranks == 0 || one.cores == 0 || sizes.one_shot_bytes == kMissing || sizes.copy_by_calls_bytes == kMissing ||
        sizes.all_reduce_by_calls_bytes == kMissing) {
      return invalid(
          "choices: each element must have ranks, cores, one_shot_bytes, copy_by_calls_bytes and "
          "all_reduce_by_calls_bytes");
    }
  }
  return std::nullopt;
}

}  // namespace

Result<Parameters> parse_parameters(std::string_view json) {
  if (json.size() > kMostParameterBytes) {
    return invalid(fmt::format("{} bytes are more than the {} of such a file", json.size(), kMostParameterBytes));
  }
  const std::size_t begin = json.find_first_not_of(" \t\r\n");
  if (begin != std::string_view::npos && json[begin] == '<') {
    return invalid(
        "this is XML; give parameters in the format of docs/parameters-json.md, as `tutti tune --print` "
        "writes them");
  }
  Parameters parameters;
  Reader reader(json, parameters);
  const bool good = nlohmann::json::sax_parse(json, &reader);
  if (auto error = reader.take_error()) return *std::move(error);
  if (!good) return invalid("this is not JSON");
  if (auto error = check(parameters)) return *std::move(error);
  return parameters;
}

Result<Parameters> load_parameters(const std::string& path) {
  // Opening or reading a named pipe could block, so only regular files are read.
  const FileType type = file_type(path);
  if (type != FileType::kNone && type != FileType::kRegular) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1, fmt::format("{}: is no regular file", path)};
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostParameterBytes + 1, '\0');
  if (file) file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) {
    return Error{ErrorCode::kSystem, ErrorScope::kCall, -1,
                 fmt::format("{}: cannot be read ({})", path, std::generic_category().message(errno))};
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  auto parameters = parse_parameters(text);
  if (parameters) return parameters;
  Error error = std::move(parameters).error();
  error.message = fmt::format("{}: {}", path, error.message);
  return error;
}

}  // namespace tutti
