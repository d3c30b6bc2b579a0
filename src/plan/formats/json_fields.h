// The table of the plan format: every field, what it may hold, and what is done with it. Internal to the reader
// (json_parse.cc). docs/plan-json.md is the same table for people.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/formats/json.h"
#include "plan/formats/json_words.h"
#include "plan/plan.h"

namespace tutti::json_fields {

// What has been read so far, and the step, the end and the slice that are being read.
struct Reading {
  PlanFile& file;
  std::uint64_t format = kPlanFormat;  // as the text says
  std::uint64_t steps = 0;             // of all ranks
  std::uint64_t messages = 0;          // sent and received, of all ranks
  std::uint64_t waits = 0;             // of all ranks
  ChannelBuilder channel{};
  std::uint16_t ports = 0;  // of the channel, as listed
  Slice source{};
  Slice sink{};
  std::uint32_t position = 0;  // of the source
  std::vector<Port> receives{};
  std::vector<Port> sends{};
  std::vector<After> after{};
  bool completes = false;
  Port end{};
  After wait{};
};

enum class Content : std::uint8_t { kNumber, kWord, kTruth, kObject, kArray };

// Functions return what is wrong, or an empty string.
struct Field {
  const char* name = "";
  Content content = Content::kObject;
  bool required = false;
  std::uint64_t least = 0;                                           // of a number
  std::uint64_t most = 0;                                            // of a number; elements of an array
  void (*number)(Reading& reading, std::uint64_t number) = nullptr;  // also true (1) and false (0)
  std::string (*word)(Reading& reading, const std::string& word) = nullptr;
  std::string (*begin)(Reading& reading) = nullptr;  // of an object or array; may be null
  std::string (*end)(Reading& reading) = nullptr;    // of an object; may be null
  std::span<const Field> inside{};                   // fields of an object; the one element of an array
};

const Field& top();

}  // namespace tutti::json_fields
