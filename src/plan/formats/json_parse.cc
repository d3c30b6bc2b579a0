// Reads plan files. A JSON parser (SAX) calls PlanReader for each value in the text, and PlanReader looks up the
// field in the table of the format's fields (json_fields.h). So fields that are not in the table are never stored,
// the nesting depth is limited by the depth of the table, and each error can report its position.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/config.h"
#include "base/file_format.h"
#include "plan/formats/json.h"
#include "plan/formats/json_fields.h"
#include "tutti/plan.h"

namespace tutti {
namespace {

using json_fields::Content;
using json_fields::Field;
using json_fields::ReaderState;

// The largest number of characters of a token or name that an error message copies from the text.
constexpr std::size_t kShownToken = 24;

std::string_view to_string(Content content) {
  switch (content) {
    case Content::kNumber: return "a whole number";
    case Content::kString: return "a string";
    case Content::kBoolean: return "true or false";
    case Content::kObject: return "an object";
    case Content::kArray: return "an array";
  }
  return "something else";
}

// Makes text from an untrusted file safe to print in an error message: shortens it, and replaces every character
// that is not printable ASCII by '?'.
std::string sanitized(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kShownToken)) result += c >= 0x20 && c < 0x7f ? c : '?';
  return text.size() > kShownToken ? result + "..." : result;
}

// The handler of the JSON parser's events. Each handler function returns true to go on, or false after an error,
// which ends the parsing. take_error() then returns the error.
class PlanReader {
 public:
  PlanReader(std::string_view text, PlanFile& file) : text_(text), reading_{.file = file} {}

  std::optional<Error> take_error() { return std::move(error_); }

  bool null() { return wrong_content("null"); }
  bool binary(std::vector<std::uint8_t>&) { return wrong_content("binary data"); }
  bool number_float(double, const std::string&) { return wrong_content("a fraction or a number beyond 64 bits"); }
  bool number_integer(std::int64_t number) {
    const Field* field = begin_value(Content::kNumber, "a number");
    return field != nullptr && fail(fmt::format("{} is outside {}..{}", number, field->least, field->most));
  }
  bool number_unsigned(std::uint64_t number) {
    const Field* field = begin_value(Content::kNumber, "a number");
    if (field == nullptr) return false;
    if (number < field->least || number > field->most) {
      return fail(fmt::format("{} is outside {}..{}", number, field->least, field->most));
    }
    field->number(reading_, number);
    if (reading_.format == kPlanFormat) return true;
    return fail(fmt::format("this is version {} of the format; known is {}", number, kPlanFormat),
                ErrorCode::kUnsupported);
  }
  bool boolean(bool truth) {
    const Field* field = begin_value(Content::kBoolean, "true or false");
    if (field == nullptr) return false;
    field->number(reading_, truth ? 1 : 0);
    return true;
  }
  bool string(const std::string& word) {
    const Field* field = begin_value(Content::kString, "a string");
    if (field == nullptr) return false;
    const std::string fault = field->word(reading_, word);
    return fault.empty() || fail(fault);
  }
  bool start_object(std::size_t) { return start(Content::kObject); }
  bool start_array(std::size_t) { return start(Content::kArray); }
  bool key(const std::string& name);
  bool end_object();
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception& error);

 private:
  // An object or array that has begun and not ended yet, and the position of the reader in it.
  struct OpenValue {
    const Field* what = nullptr;
    // In an object: the field of the next value; null if there is none. In an array: the description of its
    // elements.
    const Field* field = nullptr;
    std::uint64_t elements = 0;  // in an array: number of elements so far, including the one that is being read
    std::uint32_t seen = 0;      // in an object: bit i is 1 if field i of `what` has occurred
  };

  const Field* begin_value(Content content, std::string_view had);
  bool start(Content content);
  bool wrong_content(std::string_view had) {
    // `had` fits no field. begin_value() reports the error, unless an object is expected here; in that case the
    // next line does.
    begin_value(Content::kObject, had);
    return !error_ && fail(fmt::format("should be {}, not {}", "an object", had));
  }
  std::string path() const;
  bool fail(const std::string& what, ErrorCode code = ErrorCode::kInvalidPlan);

  std::string_view text_;
  ReaderState reading_;
  std::vector<OpenValue> open_;
  std::optional<Error> error_;
};

std::string PlanReader::path() const {
  std::string path;
  for (const OpenValue& place : open_) {
    if (place.what->content == Content::kArray) {
      if (place.elements > 0) path += fmt::format("[{}]", place.elements - 1);
    } else if (place.field != nullptr) {
      path += fmt::format("{}{}", path.empty() ? "" : ".", place.field->name);
    }
  }
  return path;
}

bool PlanReader::fail(const std::string& what, ErrorCode code) {
  const std::string where = path();
  const auto rank = static_cast<std::int32_t>(reading_.file.plan.ranks.size()) - 1;
  error_ = Error{.code = code,
                 .scope = ErrorScope::kCall,
                 .rank = where.starts_with("ranks[") ? rank : -1,
                 .message = where.empty() ? "the plan " + what : fmt::format("{}: {}", where, what)};
  return false;
}

// Called at the beginning of each value. Returns the field to which the value belongs. If that field does not have
// the type `content`, or an array has too many elements, sets error_ and returns null. `had` describes the value
// in error messages.
const Field* PlanReader::begin_value(Content content, std::string_view had) {
  const Field* field = &json_fields::top();
  if (!open_.empty()) {
    OpenValue& place = open_.back();
    field = place.field;
    if (place.what->content == Content::kArray && ++place.elements > place.what->most) {
      fail(fmt::format("there are more than {}", place.what->most), ErrorCode::kUnsupported);
      return nullptr;
    }
  }
  if (field->content == content) return field;
  fail(fmt::format("should be {}, not {}", to_string(field->content), had));
  return nullptr;
}

bool PlanReader::start(Content content) {
  const Field* field = begin_value(content, to_string(content));
  if (field == nullptr) return false;
  if (field->begin != nullptr) {
    if (const std::string fault = field->begin(reading_); !fault.empty()) return fail(fault, ErrorCode::kUnsupported);
  }
  open_.push_back({.what = field, .field = content == Content::kArray ? field->inside.data() : nullptr});
  return true;
}

bool PlanReader::key(const std::string& name) {
  OpenValue& place = open_.back();
  place.field = nullptr;
  const std::span<const Field> fields = place.what->inside;
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == name; });
  if (found == fields.end()) {
    std::vector<std::string_view> known;
    known.reserve(fields.size());
    for (const Field& field : fields) known.emplace_back(field.name);
    const std::string_view nearest = nearest_name(std::string_view(name).substr(0, kShownToken), known);
    return fail(fmt::format("has an unknown field \"{}\"; {}", sanitized(name),
                            nearest.empty() ? fmt::format("known are {}", fmt::join(known, ", "))
                                            : fmt::format("did you mean \"{}\"?", nearest)));
  }
  const std::uint32_t bit = 1u << (found - fields.begin());
  place.field = &*found;
  if ((place.seen & bit) != 0) return fail("occurs twice");
  place.seen |= bit;
  return true;
}

bool PlanReader::end_object() {
  const OpenValue place = open_.back();
  open_.back().field = nullptr;
  for (std::size_t i = 0; i < place.what->inside.size(); ++i) {
    const Field& field = place.what->inside[i];
    if (field.required && (place.seen & (1u << i)) == 0) return fail(fmt::format("has no \"{}\"", field.name));
  }
  if (place.what->end != nullptr) {
    if (const std::string fault = place.what->end(reading_); !fault.empty()) return fail(fault);
  }
  open_.pop_back();
  return true;
}

bool PlanReader::parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception&) {
  if (error_) return false;
  const std::string_view before = text_.substr(0, position == 0 ? 0 : position - 1);
  const std::size_t line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
  const std::size_t newline = before.rfind('\n');
  const std::size_t column = before.size() - (newline == std::string_view::npos ? 0 : newline + 1) + 1;
  const std::string where = path();
  const bool ended = position > text_.size();
  // Sets the rank and the scope of error_. The message is set below.
  fail("");
  error_->message = fmt::format("line {}, column {}{}{}: this is not JSON: {}", line, column, where.empty() ? "" : ", ",
                                where, ended ? "the text ends too early" : fmt::format("at \"{}\"", sanitized(token)));
  return false;
}

// Returns the name of a file format that users might pass by mistake instead of a plan. Empty if `kind` is none of
// these formats.
std::string_view name_of_other_format(FileFormat kind) {
  switch (kind) {
    case FileFormat::kMscclAlgorithm: return "an algorithm of MSCCL in XML";
    case FileFormat::kMscclppPlan: return "an execution plan of MSCCL++";
    case FileFormat::kNcclGraphs: return "a file of rings and trees of NCCL (NCCL_GRAPH_FILE)";
    case FileFormat::kNcclTopology: return "a topology file of NCCL";
    case FileFormat::kHwlocTopology: return "a topology of hwloc (lstopo)";
    case FileFormat::kXml: return "XML";
    // Other files may be plans with errors, for which the reader has better error messages.
    case FileFormat::kJsonAlgorithm:
    case FileFormat::kTuttiPlan:
    case FileFormat::kJson:
    case FileFormat::kUnknown: break;
  }
  return {};
}

// Checks the peers and lanes of all ports that the steps use. This is possible only after the whole text was read,
// because the number of ranks is the number of elements of "ranks", and "lanes" may follow it.
Status check_peers(const Plan& plan) {
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (std::size_t c = 0; c < plan.ranks[rank].channels.size(); ++c) {
      const Channel& channel = plan.ranks[rank].channels[c];
      for (std::size_t s = 0; s < channel.steps.size(); ++s) {
        const Step& step = channel.steps[s];
        for (std::size_t i = 0; i < std::size_t{step.receive_count} + step.send_count; ++i) {
          const Port& port = channel.ports[channel.lists[step.list_begin + i]];
          const bool sends = i >= step.receive_count;
          const auto refuse = [&](std::string_view field, const std::string& what) {
            return Error{
                .code = ErrorCode::kInvalidPlan,
                .rank = static_cast<std::int32_t>(rank),
                .message = fmt::format("ranks[{}].channels[{}].steps[{}].{}[{}].{}: {}", rank, c, s,
                                       sends ? "send" : "receive", sends ? i - step.receive_count : i, field, what)};
          };
          if (port.peer >= plan.ranks.size())
            return refuse("peer", fmt::format("there is no rank {} among {}", port.peer, plan.ranks.size()));
          if (port.peer == rank) return refuse("peer", "a rank has no connection to itself");
          if (port.lane >= plan.shape.lanes)
            return refuse("lane", fmt::format("there is no lane {}: \"lanes\" is {}", port.lane, plan.shape.lanes));
        }
      }
    }
  }
  return {};
}

}  // namespace

Result<PlanFile> parse_plan(std::string_view text) {
  if (const std::string_view other = name_of_other_format(file_format(text)); !other.empty()) {
    return Error{.code = ErrorCode::kInvalidPlan,
                 .message = fmt::format("this is {}; give a plan in the format of docs/plan-json.md, as "
                                        "`tutti plan --json FILE` writes it",
                                        other)};
  }
  if (text.size() > PlanLimits::kJsonBytes) {
    return Error{.code = ErrorCode::kUnsupported,
                 .message = fmt::format("the plan is too large: {} bytes of text, at most {} are supported",
                                        text.size(), PlanLimits::kJsonBytes)};
  }
  PlanFile file;
  file.says_windows_in_place = false;
  file.plan.shape.algorithm = Algorithm::kUser;
  PlanReader reader(text, file);
  const bool read = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  if (auto error = reader.take_error()) return *std::move(error);
  if (!read) return Error{.code = ErrorCode::kInvalidPlan, .message = "the text is not JSON"};
  file.plan.shape.collective.ranks = static_cast<std::uint32_t>(file.plan.ranks.size());
  if (auto peers = check_peers(file.plan); !peers) return peers.error();
  return file;
}

}  // namespace tutti
