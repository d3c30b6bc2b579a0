// Fuzzes costs and rules: files of parameters, TUTTI_TUNE, and the text in which rank 0 sends both to the other
// ranks (selection/tuning.h).
#include "selection/tuning.h"
#include "support.h"

namespace {

using namespace tutti;
using fuzz::demand;

void check_parameters(std::string_view text) {
  const auto read = parse_parameters(text);
  if (!read) return demand(!read.error().message.empty(), "an error has a message");
  demand(read->measured.size() <= kMostMeasurements, "measurements are bounded");
  const auto again = parse_parameters(to_json(*read));
  demand(again.ok() && *again == *read, "written parameters are read back the same");
}

void check_rules(std::string_view text) {
  const auto rules = parse_overrides(text);
  if (!rules)
    return demand(rules.error().code == ErrorCode::kConfig && !rules.error().message.empty(),
                  "an error has a message and a known code");
  demand(rules->size() <= kMostOverrides, "the number of rules is limited");
  for (const Override& rule : *rules) {
    demand(rule.min_bytes <= rule.max_bytes && rule.min_ranks <= rule.max_ranks, "the ranges of a rule are not empty");
    demand(rule.chunk_bytes <= kMostSlotBytes && rule.chunk_bytes % kSlotUnit == 0, "chunks fit a slot");
  }
}

void check_told(std::string_view text) {
  const auto tuning = detail::unpack(text);
  if (!tuning)
    return demand(tuning.error().code == ErrorCode::kRefused && !tuning.error().message.empty(),
                  "an error has a message and a known code");
  check_rules(tuning->rules);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  switch (input.take<std::uint8_t>() % 3) {
    case 0: check_parameters(input.rest()); break;
    case 1: check_rules(input.rest()); break;
    default: check_told(input.rest());
  }
  return 0;
}
