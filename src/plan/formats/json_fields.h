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

// The state of the reader: the plan so far, and the step, port, wait and slices that are being read.
struct ReaderState {
  PlanFile& file;
  std::uint64_t format = kPlanFormat;  // the version in the text
  std::uint64_t steps = 0;             // number of steps of all ranks
  std::uint64_t messages = 0;          // number of sends and receives of all ranks
  std::uint64_t waits = 0;             // number of waits of all ranks
  ChannelBuilder channel{};
  std::uint16_t ports = 0;  // number of ports of the channel that were listed so far
  Slice source{};
  Slice sink{};
  std::uint32_t position = 0;  // position of the source among the operands
  std::vector<Port> receives{};
  std::vector<Port> sends{};
  std::vector<After> after{};
  bool completes = false;
  Port end{};
  After wait{};
};

enum class Content : std::uint8_t { kNumber, kString, kBoolean, kObject, kArray };

// Describes one field, and how its value is stored. The functions that return a string return an error message, or
// an empty string for success.
struct Field {
  const char* name = "";
  Content content = Content::kObject;
  bool required = false;
  std::uint64_t least = 0;  // smallest value of a number
  // largest value of a number; for an array, the largest number of elements
  std::uint64_t most = 0;
  void (*number)(ReaderState& reading, std::uint64_t number) = nullptr;  // also for booleans, as 1 and 0
  std::string (*word)(ReaderState& reading, const std::string& word) = nullptr;
  std::string (*begin)(ReaderState& reading) = nullptr;  // called at the start of an object or array; may be null
  std::string (*end)(ReaderState& reading) = nullptr;    // called at the end of an object; may be null
  // for an object its fields; for an array a single entry that describes its elements
  std::span<const Field> inside{};
};

const Field& top();

}  // namespace tutti::json_fields
