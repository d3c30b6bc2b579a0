// The fields of the plan format as a table: the name, type and range of each field, and how its value is stored.
// Used only by the reader (json_parse.cc). docs/plan-json.md describes the same fields for people.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/formats/json.h"
#include "plan/formats/json_words.h"
#include "plan/plan.h"

namespace tutti::json_fields {

// The state of the reader: the part of the plan that was read so far, and the channel, step, port, wait and slices
// that are being read. `end` is the element of "ports", "receive" or "send" that is being read.
struct ReaderState {
  PlanFile& file;
  std::uint64_t format = kPlanFormat;  // the version number in the text (field "tutti_plan")
  std::uint64_t steps = 0;             // number of steps read so far, over all ranks
  std::uint64_t messages = 0;          // number of sends and receives read so far, over all ranks
  std::uint64_t waits = 0;             // number of waits read so far, over all ranks
  ChannelBuilder channel{};
  std::uint16_t ports = 0;  // number of ports read so far from the channel's field "ports"
  Slice source{};
  Slice sink{};
  std::uint32_t position = 0;  // position of the source among the operands of the step that is being read
  std::vector<Port> receives{};
  std::vector<Port> sends{};
  std::vector<After> after{};
  bool completes = false;
  std::uint32_t run = 1;
  Port end{};
  After wait{};
};

enum class Content : std::uint8_t { kNumber, kString, kBoolean, kObject, kArray };

// Describes one field of the format, and how its value is stored. Only the functions that fit `content` are used:
// `number` for numbers and booleans, `word` for strings, `begin` for objects and arrays, `end` for objects. The
// functions that return a string return an error message, or an empty string for success.
struct Field {
  const char* name = "";
  Content content = Content::kObject;
  bool required = false;
  std::uint64_t least = 0;  // smallest allowed value of a number
  // Largest allowed value of a number. For an array: the largest number of its elements.
  std::uint64_t most = 0;
  // stores a number; a boolean is passed as 1 (true) or 0 (false)
  void (*number)(ReaderState& reading, std::uint64_t number) = nullptr;
  std::string (*word)(ReaderState& reading, const std::string& word) = nullptr;
  std::string (*begin)(ReaderState& reading) = nullptr;  // called at the start of an object or array; may be null
  std::string (*end)(ReaderState& reading) = nullptr;    // called at the end of an object; may be null
  // For an object: its fields. For an array: a single entry, which describes each of its elements.
  std::span<const Field> inside{};
};

// Returns the description of the whole file: the outermost object.
const Field& top();

}  // namespace tutti::json_fields
